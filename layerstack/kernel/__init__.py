"""Linux and the file system: system calls, durable writes, overlay mounts, whiteouts, extended attributes,
records on disk.

Imports `model` and `text`.
"""
