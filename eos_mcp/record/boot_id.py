"""The identity of the machine's present boot."""

from __future__ import annotations


def boot_id() -> str:
    """Return the kernel's random id of this boot; empty where the system has none (random(4), boot_id)."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode().strip()
    except OSError:
        return ""
