"""Git repositories that both sides of a publication changed, merged without a git program: objects, refs,
commits, the index, attributes. Works on the trees base, ours and head; runs no hooks, drivers or processes.

Imports `units` and what is below it.
"""
