"""From captured changes to one layer on top of the head: decision table, merge, commit, quota, drafts.

Imports `units` and what is below it.
"""
