"""How much one answer of an observability operation holds."""

MAX_RECORDS = 500
MAX_BYTES = 240 * 1024
"""Of the records; what is around them fits into the rest of 256 KiB."""
