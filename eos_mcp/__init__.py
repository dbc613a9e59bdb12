"""The host side: command-line programs, gateway, manager, providers, MCP server. Importing it loads
nothing.
"""

__version__ = "0.1.0"
