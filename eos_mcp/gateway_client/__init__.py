"""One request to the gateway, from a program (`sync`) or an event loop (`aio`); starts a gateway when none
runs.

Imports `requests` and what is below it.
"""
