"""The agent's log: standard error, one JSON line per event."""

from __future__ import annotations

import json
import sys
import time
import traceback
from typing import Any

from layerstack.errors import LayerStackError


def log(event: str, **fields: Any) -> None:
    """Write one line `{"event", "ts", ...}`. A full or closed standard error is ignored."""
    line({"event": event, "ts": int(time.time() * 1000), **fields})


def failure(event: str, error: BaseException, **fields: Any) -> None:
    """Log an exception, with its traceback unless the store or the kernel raised it on purpose."""
    if isinstance(error, (LayerStackError, OSError)):
        log(event, error=type(error).__name__, **{"message": str(error), **fields})
        return
    log(event, error=type(error).__name__, traceback="".join(traceback.format_exception(error)), **fields)


def line(value: object) -> None:
    """Write a line: a text unchanged, any other value as JSON."""
    try:
        sys.stderr.write(
            (value if isinstance(value, str) else json.dumps(value, ensure_ascii=True, default=str)) + "\n"
        )
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
