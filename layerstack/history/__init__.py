"""History: versions, differences, patches, blame, pins.

Imports `session` and what is below it.
"""
