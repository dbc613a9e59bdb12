"""The open stack that free functions take: head, locks, leases, caches.

Imports `layers` and what is below it.
"""
