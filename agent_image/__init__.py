"""The content of every sandbox, whatever its image: an interpreter with its own loader and libc, eos_agent
and layerstack.
"""
