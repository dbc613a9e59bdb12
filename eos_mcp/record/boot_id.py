"""Which start of this machine it is."""

from __future__ import annotations


def boot_id() -> str:
    """The kernel's random name for this boot; empty where the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode().strip()
    except OSError:
        return ""
