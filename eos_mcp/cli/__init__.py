"""The command-line programs: a parser, help pages and output over the catalog. The standard library is enough
to start one.

Imports the rooms that a command needs, when it needs them; only `__main__` is above it.
"""
