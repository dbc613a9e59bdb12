"""Ids that exports to git left at refs of the host, so that a ref that was moved since is noticed.

    <state>/export-records/<sandbox>/git-refs.json
    {"format": 1, "refs": {"<repository>": {"<ref>": "<id>"}}}

Without the file the trailers of the commits say it.
"""

from __future__ import annotations

import json
import os
from typing import cast

FORMAT = 1
NAME = "git-refs.json"
BYTES_MAX = 16 << 20
REFS_MAX = 10_000


def read(directory: str, sandbox_id: str) -> dict[str, dict[str, str]]:
    """Return repository -> ref -> id; empty without a file that can be read."""
    try:
        with open(os.path.join(directory, sandbox_id, NAME), "rb") as file:
            body: object = json.loads(file.read(BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return {}
    found = cast("dict[str, object]", body) if isinstance(body, dict) else {}
    refs = found.get("refs")
    if found.get("format") != FORMAT or not isinstance(refs, dict):
        return {}
    result: dict[str, dict[str, str]] = {}
    for repository, rows in cast("dict[str, object]", refs).items():
        if isinstance(rows, dict):
            some = cast("dict[str, object]", rows)
            result[repository] = {ref: oid for ref, oid in some.items() if isinstance(oid, str)}
    return result


def note(directory: str, sandbox_id: str, repository: str, ref: str, oid: str) -> None:
    """Record what an export left at a ref.

    Raises:
        OSError: the state directory cannot be written.
    """
    refs = read(directory, sandbox_id)
    rows = refs.setdefault(repository, {})
    if rows.get(ref) == oid:
        return
    if sum(map(len, refs.values())) >= REFS_MAX:
        refs = {repository: rows}
    rows[ref] = oid
    folder = os.path.join(directory, sandbox_id)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, NAME)
    data = json.dumps({"format": FORMAT, "refs": refs}).encode("utf-8", "backslashreplace") + b"\n"
    with open(
        os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb"
    ) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)
