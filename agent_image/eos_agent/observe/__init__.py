"""RUNS IN THE AGENT: the observability operations, one file each.

Imports `sessions` and what is below it.
"""
