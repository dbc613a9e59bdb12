"""The tasks that a coding agent does with a sandbox, done by a script that knows what a model knows: the tool
definitions and the text of each result. `python -m tests.tasks` prints their costs.
"""
