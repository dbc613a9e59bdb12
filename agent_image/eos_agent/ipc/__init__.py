"""Frames and descriptors between agent, zygote and init.

Imports `base` and what is below it.
"""
