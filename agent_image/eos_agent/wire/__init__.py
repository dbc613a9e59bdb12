"""The protocol shared with the host: envelopes, operations, arguments, proofs. Any OS, standard library only.

Imports `layerstack.model` and nothing else of this project.
"""
