"""Limits of one answer of an observability operation."""

MAX_RECORDS = 500
MAX_BYTES = 240 * 1024
"""Most bytes of records in an answer; the rest of 256 KiB is for the other fields."""
