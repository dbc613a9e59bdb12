"""What Linux offers: system calls, durable writes, overlay mounts, whiteouts, extended attributes, records on disk.

Imports `model` and `text`.
"""
