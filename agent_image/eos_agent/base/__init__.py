"""Settings, log, thread pools, telemetry and wire errors of the agent process.

Imports `machine` and `wire`.
"""
