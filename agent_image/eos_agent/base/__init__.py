"""What the agent process uses everywhere: settings, log, thread pools, telemetry, errors on the wire.

Imports `machine` and `wire`.
"""
