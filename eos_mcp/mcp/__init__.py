"""The MCP server that a coding agent starts: stdio and HTTP, tools, replies for models. Nothing is imported at load time.

Imports `gateway_client` and what is below it.
"""
