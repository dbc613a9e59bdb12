"""RUNS IN THE AGENT: the observability operations.

Imports `sessions` and what is below it.
"""
