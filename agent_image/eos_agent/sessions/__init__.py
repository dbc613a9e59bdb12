"""RUNS IN THE AGENT: sessions and commands from creation to publication, draft or end.

Imports `handles` and what is below it.
"""
