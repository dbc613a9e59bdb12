"""Confinement by Linux: namespaces, cgroups, seccomp, netlink, /proc.

Runs in the agent, in the zygote and in init. Imports `ipc` and lower levels.
"""
