"""`eos fsck SANDBOX|DIR`: check a store through the agent of a running sandbox, or in a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eos_agent.wire import protocol
from eos_agent.wire.protocol import INTERNAL_ERROR, OperationError
from eos_mcp import catalog
from eos_mcp.cli import output
from eos_mcp.config import paths
from eos_mcp.gateway_client import sync

USAGE = """usage: eos fsck [--base] [--json] [--progress] SANDBOX|DIR

Compares every layer, draft and record of a store with its checksum, and lists what differs. It changes nothing.

  SANDBOX     the id of a sandbox: its agent checks the store; publishes continue
  DIR         a store that no agent has open: its directory, or the state directory of a stopped local sandbox
  --base      read the base too, and compare it with the hash that the sandbox was made with
  --json      one JSON object: clean, damage, notes, checked
  --progress  report progress on standard error even when that is not a terminal

Exit status: 0 clean, 1 damaged, 2 nothing could be checked. Left-over files that the next start removes, and parts
that could not be checked, are listed and do not count as damage.
"""  # noqa: E501
WORDS = {"left_over": "left over", "not_checked": "not checked", "unknown": "unknown"}
DAMAGED, UNREACHABLE = 1, 2


class FsckReport:
    """Findings so far; damage is printed at once, or kept for one JSON object."""

    def __init__(self, *, as_json: bool, tell: Callable[[str], None] | None) -> None:
        self.as_json, self._tell = as_json, tell
        self.damage: list[Mapping[str, Any]] = []
        self.notes: list[Mapping[str, Any]] = []
        self.checked = {"layers": 0, "entries": 0, "bytes": 0}

    def damaged(self, found: Mapping[str, Any]) -> None:
        self.damage.append(found)
        if not self.as_json:
            output.write(output.shown(f"{found['file']}: {found['what']} (by {found['found_by']})"))

    def noted(self, note: Mapping[str, Any]) -> None:
        """Add a note once: a part that is checked again reports the same note."""
        if note not in self.notes:
            self.notes.append(note)

    def progress(self, what: str) -> None:
        if self._tell is not None:
            self._tell(what)

    def finish(self, about: Mapping[str, Any]) -> int:
        if self.as_json:
            whole = {
                **about,
                "clean": not self.damage,
                "damage": self.damage,
                "notes": self.notes,
                "checked": self.checked,
            }
            output.write(output.harmless(protocol.encode(whole)))
        else:
            for note in self.notes:
                output.write(
                    output.shown(
                        f"{WORDS.get(str(note['kind']), note['kind'])}: {note['file']}: {note['what']}"
                    )
                )
            verdict = f"{len(self.damage)} damaged" if self.damage else "clean"
            output.write(output.shown(f"{verdict}: {in_words(self.checked)}"))
        return DAMAGED if self.damage else output.OK


def in_words(checked: Mapping[str, int]) -> str:
    return f"{checked['layers']} layers, {checked['entries']} entries, {checked['bytes']} bytes read"


def main(words: Sequence[str]) -> int:
    """Run `eos fsck`; return exit status 0 clean, 1 damaged, 2 for wrong usage and an unreachable store."""
    options = [word for word in words if word.startswith("--")]
    targets = [word for word in words if not word.startswith("--")]
    if "--help" in options or list(words) == ["-h"]:
        return output.page(USAGE)
    if len(targets) != 1 or set(options) - {"--base", "--json", "--progress"}:
        output.write_error(USAGE.encode())
        return output.USAGE
    (target,) = targets
    watched = "--progress" in options or sys.stderr.isatty()
    report = FsckReport(
        as_json="--json" in options, tell=output.progress_printer(time.monotonic()) if watched else None
    )
    try:
        if os.sep in target or os.path.isdir(target):
            return report.finish(of_folder(os.path.abspath(target), "--base" in options, report))
        return report.finish(of_sandbox(target, "--base" in options, report))
    except OperationError as error:
        output.own_error(error, details=True)
        return UNREACHABLE
    except KeyboardInterrupt:
        return 130


def of_sandbox(sandbox_id: str, base: bool, report: FsckReport) -> dict[str, Any]:
    """Check a store through the sandbox's agent, page by page.

    Raises:
        OperationError: the agent cannot be reached, or refused.
    """
    operation = catalog.find("fsck")
    assert operation is not None
    settings, cursor = sync.discover(), None
    while True:
        given: dict[str, Any] = {"base": base, **({"cursor": cursor} if cursor is not None else {})}
        _, args = catalog.build(operation, given, selector=sandbox_id)
        reply = sync.call(settings, operation.name, args, sandbox_id=sandbox_id)
        if "error" in reply:
            failure = reply["error"]
            details = dict(failure.get("details") or {})
            state = os.path.join(paths.state_dir(), "sandboxes", sandbox_id)
            import shlex

            folder = shlex.quote(state) if os.path.isdir(state) else "DIR"
            details.setdefault(
                "hint", f"when its agent cannot start: eos fsck {folder} checks the store without it"
            )
            raise OperationError(str(failure.get("kind")), str(failure.get("message")), details)
        for found in reply["damage"]:
            report.damaged(found)
        for note in reply["notes"]:
            report.noted(note)
        for key in report.checked:
            report.checked[key] += reply["checked"][key]
        cursor = reply["next"]
        report.progress(f"{in_words(report.checked)}; {reply['parts_left']} parts left")
        if cursor is None:
            return {"sandbox_id": sandbox_id}


def of_folder(folder: str, base: bool, report: FsckReport) -> dict[str, Any]:
    """Check a store that no agent has open.

    Raises:
        OperationError: there is no store, a process has it open, or this user may not read it.
    """
    command = [
        sys.executable,
        "-P",
        "-m",
        "eos_agent.sessions.check_store",
        *(["--base"] if base else []),
        folder,
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as looking:
        assert looking.stdout is not None
        try:
            for line in looking.stdout:
                said: dict[str, Any] = json.loads(line)
                if "damage" in said:
                    report.damaged(said["damage"])
                elif "note" in said:
                    report.noted(said["note"])
                elif "progress" in said:
                    report.progress(f"{said['progress']}: {in_words(said)}")
                elif "end" in said:
                    report.checked = said["end"]
                    return {"store": said["store"]}
                elif "error" in said:
                    failure = said["error"]
                    raise OperationError(
                        str(failure["kind"]), str(failure["message"]), dict(failure.get("details") or {})
                    )
        finally:
            looking.kill()
    raise OperationError(
        INTERNAL_ERROR,
        f"the check of {folder} ended before its result; nothing was changed: run it again",
        {"store": folder},
        reason="fsck_ended",
    )
