"""The providers, in which sandboxes run: a Docker container, or processes of this machine in namespaces of
their own.

Imports `workspace` and what is below it.
"""
