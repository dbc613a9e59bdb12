"""Which variables of the gateway's own environment commands of local sandboxes get, and with which values."""

from __future__ import annotations

import os
import re

NAMES = ("HOME", "USER", "LANG", "LC_ALL", "TERM", "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
OF_THE_PERSON = ("HOME", "USER")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def variables(*, own_root: bool) -> list[str]:
    """As NAME=value. own_root: the sandbox has a root file system of its own, in which the person is unknown."""
    names = [name for name in NAMES if not (own_root and name in OF_THE_PERSON)]
    found = [*names, *(name.lower() for name in names if "PROXY" in name)]
    return [f"{name}={_value(name)}" for name in found if name in os.environ]


def _value(name: str) -> str:
    value = os.environ[name]
    return without_credentials(value) if "PROXY" in name.upper() and name.upper() != "NO_PROXY" else value


def without_credentials(address: str) -> str:
    """The address of a proxy without user and password."""
    scheme = _SCHEME.match(address)
    start = scheme.end() if scheme else 0
    return address[:start] + address[start:].rpartition("@")[2]
