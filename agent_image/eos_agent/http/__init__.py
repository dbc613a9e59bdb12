"""RUNS IN THE AGENT: `/health`, `/files/list` and the reverse proxy `/forward`.

Imports `serve` and lower levels.
"""
