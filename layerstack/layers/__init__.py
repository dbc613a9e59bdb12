"""Immutable layers: indexes, the chain of a version, snapshots, capture, flattening.

Imports `tree` and what is below it.
"""
