"""The MCP server that a coding agent starts: stdio and HTTP, tools, replies for models.

Imports `gateway_client` and what is below it, each module when it is needed.
"""
