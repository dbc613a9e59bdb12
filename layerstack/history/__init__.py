"""Look back: versions, patches, blame, pins.

Imports `session` and what is below it.
"""
