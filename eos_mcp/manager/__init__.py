"""The operations over sandboxes: create, list, diagnose, export, destroy, prune, metrics.

Imports `imports` and what is below it.
"""
