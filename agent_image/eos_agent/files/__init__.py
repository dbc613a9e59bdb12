"""File operations on a directory tree by descriptor, without following links.

Runs in init, in a helper and, for the published head, in the agent. Imports `kernel` and lower levels.
"""
