"""RUNS IN THE AGENT: the JSON-line listeners and the table from operation to handler.

Imports `observe` and what is below it.
"""
