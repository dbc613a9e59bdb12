"""RUNS IN THE ZYGOTE: forks the init of each session.

Imports `init` and lower levels.
"""
