"""Settings, log, thread pools, telemetry and wire errors of the agent, the zygote and init.

Imports `machine` and `wire`.
"""
