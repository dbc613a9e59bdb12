"""What is kept on disk of each sandbox: its record and its samples.

Imports `agent_client` and what is below it.
"""
