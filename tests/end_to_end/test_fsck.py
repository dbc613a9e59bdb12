"""`eos fsck` of a running sandbox and of the store of one that is stopped, by whoever owns it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.cli_user import Container, Desk, Sandbox, docker, living, watch
from tests.end_to_end.places import DOCKER, ORDINARY_IN_A_SOAK, ROOT, in_places
from tests.processes import kill
from tests.users import Person

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]


def fsck(sandbox: Sandbox, *words: str, status: int) -> dict[str, Any]:
    """The one object that it prints, on standard output or, when nothing could be checked, on standard
    error.
    """
    done = sandbox.desk.run("eos", "fsck", "--json", *words)
    assert done.returncode == status, (done.stdout, done.stderr)
    return dict(json.loads(done.stderr if status == 2 else done.stdout))


def stop(sandbox: Sandbox) -> None:
    """No agent has the store; the gateway does not know."""
    if isinstance(sandbox, Container):
        docker("stop", "-t", "5", sandbox.id)
    else:
        agent = watch([sandbox.agent()])
        kill(sandbox.agent())
        assert not living(agent)


@in_places(ROOT, ORDINARY_IN_A_SOAK, DOCKER)
def test_a_store_is_checked_while_it_is_served_and_while_it_is_not(sandbox: Sandbox) -> None:
    sandbox.write("a.txt", "mine\n")
    sandbox.shell("rm -r d; mkdir d; echo x > d/x; chmod 700 d; ln -s a.txt l; chmod 000 a.txt")
    sandbox.session()
    assert fsck(sandbox, "--base", sandbox.id, status=0)["clean"] is True
    store = str(sandbox.store)
    assert fsck(sandbox, store, status=2)["error"]["details"]["reason"] == "store_busy"

    (file,) = sandbox.store.glob("layers/*/d/x")
    status = file.stat()
    file.write_text("y\n")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    found = fsck(sandbox, sandbox.id, status=1)
    layer = file.relative_to(sandbox.store).parts[1]
    assert [(damage["file"], damage["found_by"]) for damage in found["damage"]] == [
        (f"layers/{layer}/d/x", "SHA-256 in the index"),
        (f"layers/{layer}", "digest"),
    ]
    said = sandbox.desk.run("eos", "fsck", sandbox.id)
    assert (
        said.returncode == 1 and f"layers/{layer}/d/x: its content is not what was published" in said.stdout
    )

    stop(sandbox)
    assert [damage["file"] for damage in fsck(sandbox, store, status=1)["damage"]] == [
        f"layers/{layer}/d/x",
        f"layers/{layer}",
    ]
    file.write_text("x\n")
    whole = fsck(sandbox, store, status=0)
    assert whole["clean"] is True and {note["kind"] for note in whole["notes"]} <= {
        "left_over",
        "not_checked",
    }, whole
    if not isinstance(sandbox, Container):
        assert fsck(sandbox, "--base", os.path.dirname(store), status=0)["store"] == store
        manifest = sandbox.store / "manifest.json"
        aside = manifest.rename(sandbox.desk.state / "aside")
        manifest.write_bytes(aside.read_bytes()[:-10])
        error = fsck(sandbox, sandbox.id, status=2)["error"]
        assert os.path.dirname(store) in error["details"]["hint"], (
            "an agent that does not start is no dead end"
        )
        assert [damage["file"] for damage in fsck(sandbox, os.path.dirname(store), status=1)["damage"]] == [
            "manifest.json"
        ]
        aside.rename(manifest)
    else:
        docker("start", sandbox.id)
    assert fsck(sandbox, sandbox.id, status=0)["clean"] is True


def test_words_that_make_no_sense_and_folders_without_a_store_are_refused(
    person: Callable[[str], Person], cache_of: Callable[[Person], Path]
) -> None:
    who = person("root")
    desk = Desk(who, cache_of(who))
    for words in ((), ("a", "b"), ("--repair", "a")):
        assert desk.run("eos", "fsck", *words).returncode == 2
    none = desk.refused("eos", "fsck", str(desk.workspace), status=2)
    assert (none["kind"], none["details"]["reason"]) == ("invalid_request", "not_a_store")
    assert f"{desk.workspace} is not a store" in none["message"]
    assert desk.refused("eos", "fsck", "/nowhere", status=2)["details"]["errno"] == "ENOENT"
    assert desk.refused("eos", "fsck", "nobody", status=2)["details"]["reason"] == "sandbox_not_found"
