"""A destination and a sandbox that would have an export write elsewhere, through the programs as a person
uses them, in each place.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from layerstack.kernel import fsync
from tests.end_to_end.cli_user import Sandbox
from tests.end_to_end.places import DOCKER, ORDINARY, ROOT, in_places
from tests.eos_mcp.export_runs import shape
from tests.eos_mcp.forged_journals import forge, victim_in

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]


def given(sandbox: Sandbox, *roots: Path) -> None:
    """All of it is the person's."""
    uid = sandbox.desk.person.uid
    if uid is not None:
        for root in roots:
            for path in (root, *root.rglob("*")):
                os.chown(path, uid, uid)


def beside_path(record: dict[str, Any]) -> list[str]:
    """The warnings of a sandbox, but for those of a PATH that the machine's own PATH brings."""
    return [warning for warning in record.get("warnings", []) if not warning.startswith("PATH: ")]


@in_places(ROOT, ORDINARY, DOCKER)
def test_a_journal_from_a_clone_or_from_the_sandbox_itself_reaches_nothing(sandbox: Sandbox) -> None:
    desk = sandbox.desk
    home = desk.person.home
    out, victim = home / "out", victim_in(home)
    out.mkdir()
    staging = forge(out, "../victim")
    given(sandbox, out, victim)
    before, there = shape(victim), shape(staging)
    sandbox.write("new.txt", "new")
    to = ("export_changes", "--sandbox-id", sandbox.id, "--dest")
    assert desk.do("manager", *to, str(out), "--dry-run")["ignored_staging"] == [str(staging)]
    result = desk.do("manager", *to, str(out))
    assert (out / "new.txt").read_text() == "new" and result["ignored_staging"] == [str(staging)]
    assert shape(victim) == before and shape(staging) == there

    sandbox.shell(
        "mkdir -p d/.eos-export-0/undo && echo 1 > d/.eos-export-0/plan && echo evil > d/.eos-export-0/undo/0"
    )
    refused = desk.refused("manager", *to, str(out))
    assert refused["details"]["reason"] == "reserved_names" and refused["details"]["paths"] == [
        "d/.eos-export-0"
    ]
    assert not (out / "d/.eos-export-0").exists() and shape(victim) == before
    sandbox.shell(
        refused["details"]["hint"].partition("exec_command: ")[2].partition("; then export")[0]
    )  # as the hint says
    desk.do("manager", *to, str(out))
    assert (out / "d/eos-export-0/undo/0").read_text() == "evil\n"
    assert shape(victim) == before and not any(name.startswith("exports/") for name in desk.left_in_state())
    assert beside_path(desk.do("manager", "inspect_sandbox", "--sandbox-id", sandbox.id)) == []
    record = desk.do("manager", "create_sandbox", "--image", "host", "--workspace-bind-root", str(out))
    desk.do("manager", "destroy_sandbox", "--sandbox-id", record["id"])
    assert beside_path(record) == ["left out, a name reserved for exports: .eos-export-0"]
    for root in (out, victim):
        fsync.remove_tree(str(root))


@in_places(ROOT, ORDINARY, DOCKER)
def test_bits_that_let_a_file_act_as_its_owner_stay_in_the_sandbox_unless_they_are_asked_for(
    sandbox: Sandbox,
) -> None:
    out = sandbox.desk.person.home / "out"
    sandbox.shell("echo x > su; chmod 4755 su")
    to = ("export_changes", "--sandbox-id", sandbox.id, "--dest", str(out))
    result = sandbox.desk.do("manager", *to)
    assert stat.S_IMODE(os.lstat(out / "su").st_mode) == 0o755
    assert (result["stripped"], result["stripped_count"]) == ([{"path": "su", "what": "setuid"}], 1)
    sandbox.desk.do("manager", *to, "--keep-setuid")
    assert stat.S_IMODE(os.lstat(out / "su").st_mode) == 0o4755
    fsync.remove_tree(str(out))
