"""Record of the external objects that the tests of one run make; none of them may be left at its end.

Every directory, sandbox and gateway's instance id is noted where it is made, by whichever process of the run,
in one file that the first process reads at the end: only what the run itself has made is looked for, since
others may use the machine and its engine meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from layerstack.kernel import fsync
from tests.processes import unmasked

FOLDER = "EOS_TESTS_SHARED"  # names the run's own directory to all its processes
NAME = re.compile(r"eos-(?:[a-z]+-)?[a-z0-9_]{8}(?![a-z0-9_-])")
ROUNDS = 100
BEYOND_A_SANDBOX = ("eos-rt-", "eos-shared-base-")


class Made(NamedTuple):
    """One line of the file: `kind` is directory, sandbox or instance; `by` the test that made it."""

    kind: str
    name: str
    by: str


def begin(parent: str) -> None:
    """Make the directory that all processes of a run share; the first one calls this before it starts the
    others.
    """
    path = tempfile.mkdtemp(prefix="eos-c-", dir=parent)
    os.chmod(path, 0o755)
    os.environ[FOLDER] = path
    note("directory", path)
    os.chmod(os.path.join(path, "made"), 0o666)  # some of the processes are an ordinary user's


def end() -> None:
    """Delete the shared directory."""
    path = os.environ.pop(FOLDER, None)
    if path is not None:
        fsync.remove_tree(path)


def shared() -> Path:
    """Return a directory for caches, which are made once in a run."""
    return Path(os.environ[FOLDER])


def note(kind: str, name: str) -> None:
    """Append a line, shorter than PIPE_BUF, in one write; do nothing outside a run."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        return
    line = json.dumps(Made(kind, name, os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]))
    with open(os.path.join(folder, "made"), "a") as file:
        file.write(line + "\n")


def note_instances_in(path: str) -> None:
    """Note the instance ids of gateways that had their state in a test's directory."""
    for state in (path, os.path.join(path, "state")):
        try:
            with open(os.path.join(state, "instance_id")) as file:
                note("instance", file.read().strip())
        except OSError:
            continue


def made() -> list[Made]:
    with open(shared() / "made") as file:
        return [Made(*json.loads(line)) for line in file]


def found() -> list[str]:
    """Return a line for each object that is left, with the test that made it. Ending processes get some
    seconds.
    """
    lines = _look()
    for _ in range(ROUNDS):
        if not lines:
            break
        time.sleep(0.1)
        lines = _look()
    return lines


def _look() -> list[str]:
    all_made = made()
    folders = {os.path.basename(one.name): one for one in all_made if one.kind == "directory"}
    sandboxes = {one.name: one for one in all_made if one.kind == "sandbox"}
    lines = [
        f"{one.name} ({one.by})"
        for one in folders.values()
        if one.name != str(shared()) and os.path.lexists(one.name)
    ]
    mine = (str(os.getpid()), str(os.getppid()))
    namespaces: set[str] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            space = os.readlink(f"/proc/{pid}/ns/mnt")
            mounts = (
                ""
                if space in namespaces
                else "\n".join(unmasked(Path(f"/proc/{pid}/mountinfo").read_text(errors="replace")))
            )
        except OSError:
            continue
        namespaces.add(space)
        lines += [
            f"process {pid}: {words[:200]} ({folders[name].by})"
            for name in _names(words) & folders.keys()
            if pid not in mine
        ]
        lines += [
            f"a mount in the namespace of {pid} names {name} ({folders[name].by})"
            for name in _names(mounts) & folders.keys()
        ]
    stores = {hashlib.sha256(os.fsencode(f"{one.name}/st")).hexdigest()[:8]: one for one in folders.values()}
    for cgroup in Path("/sys/fs/cgroup").glob("*/eos-*"):
        whose = next((one for name, one in sandboxes.items() if cgroup.name.startswith(name)), None)
        if cgroup.name.startswith("eos-test-"):
            whose = stores.get(cgroup.name[9:17])
        if whose is not None:
            lines.append(f"{cgroup} ({whose.by})")
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        lines += [
            f"{file}: {file.read_text().strip()} ({folders[name].by})"
            for name in _names(file.read_text()) & folders.keys()
        ]
    if sandboxes:
        lines += _in_engine(folders, sandboxes)
    return lines


def _names(text: str) -> set[str]:
    return set(NAME.findall(text))


def _in_engine(folders: dict[str, Made], sandboxes: dict[str, Made]) -> list[str]:
    lines: list[str] = []
    for kind, words in (("container", ("ps", "-a")), ("volume", ("volume", "ls"))):
        shown = "{{.Names}} {{.Labels}}" if kind == "container" else "{{.Name}}"
        for line in _docker(*words, "--format", shown):
            whose = next((one for name, one in sandboxes.items() if line.startswith(name)), None)
            whose = whose or next((folders[name] for name in sorted(_names(line) & folders.keys())), None)
            if whose is not None:
                lines.append(f"{kind} {line.split()[0]} ({whose.by})")
    return lines


def remove_shared_volumes() -> None:
    """Bundles and bases that gateways of this run have put into the engine, where no container has them: it
    keeps them for the next sandbox.
    """
    instances = {one.name for one in made() if one.kind == "instance"}
    lines = _docker("volume", "ls", "--format", '{{.Name}} {{.Label "eos.made_by"}}')
    names = [line.partition(" ")[0] for line in lines if line.partition(" ")[2] in instances]
    if unused := [name for name in names if name.startswith(BEYOND_A_SANDBOX)]:
        _docker("volume", "rm", *unused)


def _docker(*words: str) -> list[str]:
    """Return the lines that it prints; none without an engine, or when the engine refuses."""
    try:
        done = subprocess.run(
            ["docker", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
    except OSError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
