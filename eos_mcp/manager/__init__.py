"""The operations over sandboxes: create, list, diagnose, export, destroy, prune, metrics.

Imports `export` and what is below it.
"""
