"""RUNS IN THE AGENT: its handles of the zygote, of each init and of each helper.

Imports `zygote` and lower levels.
"""
