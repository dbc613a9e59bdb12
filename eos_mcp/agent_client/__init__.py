"""Pooled connections from the gateway to the agents of sandboxes.

Imports `gateway_client` and what is below it.
"""
