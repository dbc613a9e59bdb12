"""Combine adjacent layers into one without a visible effect.

Imports `fsck` and what is below it.
"""
