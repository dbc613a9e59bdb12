"""Combine adjacent layers into one without a visible effect.

Imports `history` and what is below it.
"""
