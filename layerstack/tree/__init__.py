"""One tree in the shape of an upperdir: the state of a path, trees on disk and in memory, staging.

Imports `kernel` and what is below it.
"""
