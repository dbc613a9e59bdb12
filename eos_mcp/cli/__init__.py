"""The command-line programs: a parser, help pages and output over the catalog. The standard library is enough
to start one.

Imports each room when a command needs it; only `__main__` is above.
"""
