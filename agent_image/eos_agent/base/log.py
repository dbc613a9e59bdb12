"""The agent's log: standard error, one line per event, JSON with its fields."""

from __future__ import annotations

import json
import sys
import time
import traceback
from typing import Any

from layerstack.errors import LayerStackError


def log(event: str, **fields: Any) -> None:
    """One line `{"event", "ts", ...}`; a full or closed standard error is no reason to fail."""
    line({"event": event, "ts": int(time.time() * 1000), **fields})


def failure(event: str, error: BaseException, **fields: Any) -> None:
    """An exception; with its traceback, which goes nowhere else, unless the store or the kernel refused on purpose."""
    if isinstance(error, (LayerStackError, OSError)):
        log(event, error=type(error).__name__, **{"message": str(error), **fields})
        return
    log(event, error=type(error).__name__, traceback="".join(traceback.format_exception(error)), **fields)


def line(value: object) -> None:
    """A plain text line as it is, anything else as JSON."""
    try:
        sys.stderr.write((value if isinstance(value, str) else json.dumps(value, ensure_ascii=True, default=str)) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
