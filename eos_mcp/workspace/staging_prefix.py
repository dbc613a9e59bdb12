"""The names under which exports stage: a copy of a workspace leaves them out, and an export refuses to write
them.
"""

PREFIX = b".eos-export-"
"""Beginning of the name of every staging directory and every unfinished archive of an export; no other file
gets such a name.
"""
