"""The record of each sandbox on disk, and its samples.

Imports `agent_client` and what is below it.
"""
