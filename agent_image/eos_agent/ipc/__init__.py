"""Frames and descriptors between agent, zygote and init.

Imports `base` and lower levels.
"""
