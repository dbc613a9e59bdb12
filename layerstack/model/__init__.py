"""Values without I/O: paths, manifests, conflicts, leases.

Imports `layerstack.errors` only; every other room imports it.
"""
