"""RUNS IN THE AGENT: the observability operations.

Imports `sessions` and lower levels.
"""
