"""Paths that are one value to the program that writes them: databases, git repositories.

Imports `layers` and what is below it.
"""
