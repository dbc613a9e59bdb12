"""`export_changes` on the host: check a stream, stage it, replace a directory or write an archive.

Imports `providers` and what is below it.
"""
