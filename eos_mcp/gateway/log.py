"""One line of JSON per event, on standard error. No token is ever handed to it."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

LOG_MAX_BYTES = 4 * 1024 * 1024


def log(event: str, **fields: Any) -> None:
    line = json.dumps({"ts": round(time.time(), 3), "event": event, **fields}, ensure_ascii=False, default=str)
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # a full disk or a closed terminal must not end the gateway


def bound_file(path: str) -> None:
    """Before a gateway appends to `path`: what an earlier one wrote moves to `path.1` once it is large."""
    try:
        if os.stat(path).st_size > LOG_MAX_BYTES:
            os.replace(path, path + ".1")
    except OSError:
        pass
