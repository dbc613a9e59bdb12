"""Checks of a raw manager request: arguments, directories it may touch, whether its caller still waits.

Imports `catalog` and `config`.
"""
