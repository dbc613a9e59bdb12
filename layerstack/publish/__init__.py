"""Publication of captured changes as one layer on top of the head.

Holds the decision table, merge, commit and drafts. Imports `core` and what is below it.
"""
