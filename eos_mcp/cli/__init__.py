"""The command-line programs: a parser, help pages and output over the catalog. Standard library only."""
