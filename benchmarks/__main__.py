"""`python -m benchmarks [ROW ...]`: prints the table; no figure is asserted, machines are shared and noisy."""

from __future__ import annotations

import os
import platform
import sys

from benchmarks import mcp_rows, rows
from benchmarks.harness import Row, table
from benchmarks.place import place

ROWS = {
    "exec": rows.exec_in_session,
    "session": rows.session_create,
    "one_shot": rows.one_shot,
    "create": rows.create_sandbox,
    "cli": rows.cli_process,
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
        print(f"{name} ...", file=sys.stderr, flush=True)
        with place() as here:
            done += ROWS[name](here)
    print(f"{platform.machine()}, {os.cpu_count()} processors, Linux {platform.release()}, Python {platform.python_version()}\n")
    print(table(done))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
