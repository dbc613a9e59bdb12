"""RUNS IN THE AGENT: the JSON-line listeners and the table from operation to handler.

Imports `observe` and lower levels.
"""
