"""Compare a store with its checksums and indexes (`fsck`).

Imports `history` and what is below it.
"""
