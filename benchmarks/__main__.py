"""`python -m benchmarks [ROW ...]`: prints the table; no figure is asserted, machines are shared and noisy."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time

from benchmarks import bulk_rows, mcp_rows, rows, session_rows, store_rows, telemetry_rows
from benchmarks.harness import Row, table
from benchmarks.place import place
from layerstack import durable

ROWS = {
    "exec": rows.exec_in_session,
    "telemetry": telemetry_rows.telemetry,
    "session": rows.session_create,
    "fifty": session_rows.fifty,
    "one_shot": rows.one_shot,
    "publish": store_rows.publish,
    "files": session_rows.files,
    "create": rows.create_sandbox,
    "cli": rows.cli_process,
    "second_create": bulk_rows.second_create,
    "export": bulk_rows.export,
    "memory": session_rows.memory,
    "mcp_start": mcp_rows.first_answer,
    "mcp_call": mcp_rows.call,
}


def main(argv: list[str]) -> int:
    unknown = [name for name in argv if name not in ROWS]
    if unknown:
        print(f"unknown row: {unknown[0]}; there are: {', '.join(ROWS)}", file=sys.stderr)
        return 2
    done: list[Row] = []
    for name in argv or ROWS:
        start = time.monotonic()
        with place() as here:
            done += ROWS[name](here)
        print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    disk = "with" if durable.keeps_order(tempfile.gettempdir()) else "without"
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    print(f"{platform.machine()}, {os.cpu_count()} processors, {system}, a file system {disk} an ordered journal\n")
    print(table(done))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
