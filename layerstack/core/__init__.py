"""The open stack that free functions take: head, locks, leases, caches.

Imports `units` and what is below it.
"""
