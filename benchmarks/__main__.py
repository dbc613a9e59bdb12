"""`python -m benchmarks [ROW ...]`: prints the table; no figure is asserted, machines are shared and noisy.
`store` stands for all rows of the library.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time

from benchmarks import (
    bulk_rows,
    git_export_rows,
    git_rows,
    git_status_rows,
    growth_rows,
    history_rows,
    import_rows,
    mcp_rows,
    merge_rows,
    network_rows,
    rows,
    session_rows,
    small_file_rows,
    store_rows,
    telemetry_rows,
)
from benchmarks.disk import journaled
from benchmarks.harness import Row, table
from benchmarks.place import place

STORE = {
    "publish": store_rows.publish,
    "open": store_rows.open_store,
    "store_memory": store_rows.memory,
    "capture": store_rows.capture,
    "git": git_rows.publish,
    "squash": history_rows.squash,
    "blame": history_rows.blame,
    "merge": merge_rows.merge,
    "export": bulk_rows.export,
    "small_files": small_file_rows.export,
    "growth": growth_rows.growth,
    "sparse": growth_rows.sparse,
    "manifests": growth_rows.manifests,
}
"""These run on a disk with a journal."""

ROWS = {
    "exec": rows.exec_in_session,
    "telemetry": telemetry_rows.telemetry,
    "session": rows.session_create,
    "exec_at_once": session_rows.exec_at_once,
    "fifty": session_rows.fifty,
    "isolated": network_rows.isolated,
    "forward": network_rows.forward,
    "one_shot": rows.one_shot,
    "files": session_rows.files,
    "create": rows.create_sandbox,
    "cli": rows.cli_process,
    "second_create": bulk_rows.second_create,
    "import": import_rows.one_changed,
    "git_status": git_status_rows.status,
    "git_export": git_export_rows.publications,
    "memory": session_rows.memory,
    "mcp_start": mcp_rows.first_answer,
    "mcp_call": mcp_rows.call,
    **STORE,
}


def main(argv: list[str]) -> int:
    wanted = [name for given in argv or ROWS for name in (STORE if given == "store" else (given,))]
    unknown = [name for name in wanted if name not in ROWS]
    if unknown:
        print(f"unknown row: {unknown[0]}; there are: store, {', '.join(ROWS)}", file=sys.stderr)
        return 2
    done: list[Row] = []
    load = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        disk, about = (
            stack.enter_context(journaled()) if any(name in STORE for name in wanted) else (None, "not used")
        )
        for name in wanted:
            start = time.monotonic()
            with place(disk if name in STORE else None) as here:
                done += ROWS[name](here)
            print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    print(
        f"{platform.machine()}, {os.cpu_count()} processors, {system}, load {load:.1f} before and "
        f"{os.getloadavg()[0]:.1f} after."
    )
    print(f"Disk of the rows {', '.join(STORE)}: {about}.\n")
    print(table(done))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
