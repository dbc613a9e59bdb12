"""The host process that holds state: it listens, authenticates, and routes requests to the manager or to the
agent of a sandbox.

Imports `manager` and what is below it.
"""
