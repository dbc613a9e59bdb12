"""`eos demo`: three scripted agents work at the same time in one sandbox, over MCP, on a real project.

Imports `mcp` and what is below it; `main` is the entry point.
"""
