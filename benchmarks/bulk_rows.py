"""Much at a time: an export of 1 GiB, and a second sandbox on a workspace of 20,000 files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Row, Series, check, timed, token
from benchmarks.place import Place, fill
from benchmarks.rows import run
from eos_mcp.config import paths

FILES, AT_ONCE, FILE_MIB = 64, 8, 16
WORKSPACE_FILES = 20_000
RUNS = 3


def export(place: Place) -> Iterator[Row]:
    """1 GiB of random bytes in 64 files, as a directory beside `cp -a` and as tar-zst beside `tar | zstd -3`,
    each with its sync; and the peak memory of both of our processes afterwards.
    """
    with place.sandbox("host", files=1) as sandbox:
        source = Path(tempfile.mkdtemp(prefix="source", dir=place.home))
        digests: dict[str, str] = {}
        for start in range(0, FILES, AT_ONCE):
            names = " ".join(f"big{n}" for n in range(start, start + AT_ONCE))
            make = f"for n in {names}; do head -c {FILE_MIB}M /dev/urandom > $n; done; sha256sum {names}"
            done = place.ask("exec_command", {"cmd": make, "yield_time_ms": 30_000}, sandbox)
            assert done["status"] == "ok", done
            digests.update((line.split()[1], line.split()[0]) for line in done["output"].splitlines())
        ours: dict[str, list[float]] = {"dir": [], "tar-zst": []}
        beside: dict[str, list[float]] = {"dir": [], "tar-zst": []}
        for n in range(RUNS):
            for form in ours:
                dest = str(place.home / f"export-{n}-{form}")

                def ours_now(dest: str = dest, form: str = form) -> None:
                    place.ask("export_changes", {"sandbox_id": sandbox, "dest": dest, "format": form})

                def by_hand_now(dest: str = dest, form: str = form) -> None:
                    by_hand(form, source, f"{dest}-copy")

                ours[form].append(timed(ours_now))
                if form == "dir" and n == 0:
                    shutil.copytree(dest, source, dirs_exist_ok=True)
                beside[form].append(timed(by_hand_now))
                if form == "dir":
                    found = {
                        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                        for path in Path(dest).glob("big*")
                    }
                    assert found == digests, f"{len(found)} files came"
                    shutil.rmtree(dest)
                    shutil.rmtree(f"{dest}-copy")
                else:
                    listed = run(["tar", "--zstd", "-tf", dest]).split()
                    assert sum(name.rpartition("/")[2] in digests for name in listed) == FILES, listed
                    os.unlink(dest)
                    os.unlink(f"{dest}-copy")
        agent = int(
            json.loads((place.home / "state" / "sandboxes" / sandbox / "endpoint.json").read_text())["pid"]
        )
        gateway = int(Path(paths.pid_path()).read_text())
        peaks = {name: peak_mib(pid) for name, pid in (("agent", agent), ("gateway", gateway))}
    titles = {"dir": "cp -a; sync -f", "tar-zst": "tar \\| zstd -3; sync -f"}
    for form, ms in ours.items():
        other = Series(titles[form], tuple(beside[form]))
        goal = "<= 1.43x (0.7x its speed)"
        yield Row(
            f"export of {FILES * FILE_MIB} MiB, {form}",
            Series("eos", tuple(ms)),
            other,
            goal,
            "the disk, one digest, and the bytes over a socket",
        )

    for name, mib in peaks.items():
        yield Row(
            f"peak memory of the {name} after them",
            Series("eos", (mib,)),
            None,
            "<= 64 MiB",
            "the interpreter and its modules",
            "MiB",
        )


def peak_mib(pid: int) -> float:
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) / 1024


def by_hand(form: str, source: Path, dest: str) -> None:
    if form == "dir":
        run(["cp", "-a", str(source), dest])
    else:
        subprocess.run(
            ["sh", "-c", 'tar -C "$0" -cf - . | zstd -q -3 -o "$1"', str(source), dest],
            check=True,
            timeout=120,
        )
    run(["sync", "-f", dest])


def repository(tree: Path) -> list[str]:
    """Commit a folder as one pack, quickly. Returns git's words before a subcommand, with which it changes
    nothing by itself.
    """
    git = ["git", "-C", str(tree), "-c", "maintenance.auto=false", "-c", "gc.auto=0", "--no-optional-locks"]
    run([*git, "init", "-q", "-b", "main"])
    commit = ["commit refs/heads/main\ncommitter b <b@example.org> 0 +0000\ndata 4\nbase\n"]
    for path in sorted(tree.glob("d*/*")):
        text = path.read_text()
        commit.append(f"M 100644 inline {path.relative_to(tree)}\ndata {len(text)}\n{text}\n")
    run([*git, "fast-import", "--quiet"], stdin="".join(commit))
    run([*git, "read-tree", "HEAD"])
    run([*git, "update-index", "-q", "--refresh"])
    return git


def second_create(place: Place) -> Iterator[Row]:
    """create_sandbox on an unchanged workspace of 20,000 files beside the first one, an empty workspace and
    `git status`.
    """
    tree = Path(tempfile.mkdtemp(prefix="w", dir=place.home))
    fill(tree, WORKSPACE_FILES)
    git = repository(tree)
    empty = Path(tempfile.mkdtemp(prefix="w", dir=place.home))
    place.ask("list_sandboxes", {})
    made: dict[str, list[float]] = {"first": [], "again": [], "empty": [], "status": []}
    for n in range(RUNS):
        for name, workspace in (("again" if n else "first", tree), ("empty", empty)):
            found: list[str] = []

            def create(workspace: Path = workspace, found: list[str] = found) -> None:
                found.append(
                    place.ask("create_sandbox", {"image": "host", "workspace_root": str(workspace)})["id"]
                )

            made[name].append(timed(create))
            if workspace is tree:
                want = token()
                got = place.ask("exec_command", {"cmd": f"cat d0199/f019999.txt; echo {want}"}, found[0])[
                    "output"
                ]
                check(got, f"line one of 19999\nline two\n{want}")
            place.ask("destroy_sandbox", {"sandbox_id": found[0]})
        made["status"].append(timed(lambda: check(run([*git, "status", "--porcelain"]), "")))
    base = min(made["empty"])
    beyond = {
        name: Series(name, tuple(max(0.0, ms - base) for ms in made[name])) for name in ("first", "again")
    }
    what = "one lstat for each file of the workspace"
    first = Series("the first create", beyond["first"].ms)
    yield Row(
        f"second create on {WORKSPACE_FILES:,} files, beyond an empty one",
        beyond["again"],
        first,
        "<= 0.15x",
        what,
    )
    status = Series("git status", tuple(made["status"]))
    yield Row("the same", beyond["again"], status, "<= 4x", what)
