"""Bytes in, bytes out: lines, diff, three-way merge, gitignore patterns. No I/O.

Imports `model`.
"""
