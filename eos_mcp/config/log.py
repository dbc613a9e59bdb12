"""The log: one line of JSON per event, on standard error. Callers pass no tokens to it."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def log(event: str, **fields: Any) -> None:
    line = json.dumps({"ts": round(time.time(), 3), "event": event, **fields}, ensure_ascii=True, default=str)
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # a full disk or a closed terminal must not end the gateway
