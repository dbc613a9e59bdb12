"""The configuration document, paths of state and cache (XDG), the token file, the log.

Imports `eos_agent.machine` and `eos_agent.wire` only.
"""
