"""The MCP server: what a coding agent's client starts. Nothing is imported here: the first answer may not wait for the SDK."""
