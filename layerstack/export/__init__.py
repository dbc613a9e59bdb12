"""Write a version as one stream of tar entries.

Imports `squash` and what is below it.
"""
