"""Paths of this machine that sessions must not see, and private directories. Shared with the host.

Imports `wire`.
"""
