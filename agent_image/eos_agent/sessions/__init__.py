"""RUNS IN THE AGENT: sessions and commands, from their creation until their work is published, a draft, or
discarded.

Imports `handles` and lower levels.
"""
