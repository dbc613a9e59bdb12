"""The base of a sandbox: a copy of a workspace, indexed and shared by content.

Imports `record` and what is below it.
"""
