"""Compare a store with its checksums and indexes (`fsck`).

Imports `export` and what is below it.
"""
