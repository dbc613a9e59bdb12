"""Publication of captured changes as one layer on top of the head.

Holds the decision table, merge, commit, quota and drafts. Imports `units` and what is below it.
"""
