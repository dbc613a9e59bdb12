"""Changes on top of a version: the upper directory of a session, rebase, rollback, edits without a mount.

Imports `publish` and what is below it.
"""
