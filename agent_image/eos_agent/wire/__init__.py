"""The protocol shared with the host: envelopes, operations, arguments, proofs. Any OS, standard library only.

Imports nothing of ours but `layerstack.model`.
"""
