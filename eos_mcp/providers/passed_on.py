"""The environment variables that commands of local sandboxes get from the gateway."""

from __future__ import annotations

import os
import re

NAMES = ("HOME", "USER", "LANG", "LC_ALL", "TERM", "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
OF_THE_PERSON = ("HOME", "USER")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def variables(*, own_root: bool) -> list[str]:
    """List them as NAME=value. own_root: the sandbox has its own root file system, which does not know the
    user.
    """
    names = [name for name in NAMES if not (own_root and name in OF_THE_PERSON)]
    found = [*names, *(name.lower() for name in names if "PROXY" in name)]
    return [f"{name}={_value(name)}" for name in found if name in os.environ]


def _value(name: str) -> str:
    value = os.environ[name]
    return without_credentials(value) if "PROXY" in name.upper() and name.upper() != "NO_PROXY" else value


def without_credentials(address: str) -> str:
    """Remove user and password from the address of a proxy."""
    scheme = _SCHEME.match(address)
    start = scheme.end() if scheme else 0
    return address[:start] + address[start:].rpartition("@")[2]
