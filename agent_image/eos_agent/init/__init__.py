"""RUNS AS PID 1 OF A SESSION (and in its worker and helper processes): mounts, spawn, reap.

Imports `files` and lower levels.
"""
