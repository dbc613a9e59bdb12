"""Checks of a raw manager request: arguments, directories that it may touch, whether its caller still waits.

Imports `catalog` and what is below it.
"""
