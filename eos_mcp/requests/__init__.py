"""Checks of a raw manager request: its arguments, the directories that it may touch, and the presence of its
caller.

Imports `catalog` and what is below it.
"""
