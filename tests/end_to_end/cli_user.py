"""A person at the command line with one workspace: the programs' answers, and the state of the sandboxes in
kernel and engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from eos_mcp.export import reserve
from layerstack.kernel import overlay
from tests import leaks
from tests.end_to_end import engine, forked_program
from tests.end_to_end.engine import in_engine as in_engine
from tests.eos_mcp import programs
from tests.in_namespace import ORDINARY_UID
from tests.processes import children_of, cmdline, descendants, mountinfo
from tests.users import Person

MODULES = programs.MODULES
ELSEWHERE = "/proc"  # a directory on a file system that cannot have a store, as the in-use probe needs it
LEFT_WAIT_S = 30

Desks = Callable[..., "Desk"]


def is_first(pid: int) -> bool:
    """Return True for pid 1 of a pid namespace."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as status:
        return any(line.split()[-1] == "1" for line in status if line.startswith("NSpid:"))
    return False


class Desk:
    """`person` in front of a workspace with a.txt and d/b.txt. `cache`: shared by desks, so that the bundle
    is built once. `EOS_STATE_DIR`: another state directory than the home's own.
    """

    def __init__(self, person: Person, cache: Path, **env: str) -> None:
        self.person = person
        self.workspace = person.home / "w"
        self.state = person.home / env.get("EOS_STATE_DIR", "state")
        self.env = {"XDG_CACHE_HOME": str(cache), **env}
        self.patience_s = 120.0
        if not self.workspace.exists():
            self.give("w/.id", person.home.name)  # a base of its own, so that its volume can be removed
            self.give("w/d/b.txt", "in a directory\n")
            self.give("w/a.txt", "base\n")

    def give(self, name: str, text: str) -> Path:
        """Write a file in the home, with its parents, all owned by the person."""
        path = self.person.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if self.person.uid is not None:
            for one in (path, *path.parents):
                if one == self.person.home:
                    break
                os.chown(one, ORDINARY_UID, ORDINARY_UID)
        return path

    def run(
        self, program: str, *words: str, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        module = MODULES.get(program, f"eos_mcp.cli.{program}")
        environment = self.person.environment(**self.env, **(env or {}))
        return forked_program.run_for(self.person, module, words, environment, timeout_s=self.patience_s)

    def do(self, program: str, *words: str) -> dict[str, Any]:
        """Return the only object that a program prints."""
        return programs.result(self.run(program, *words))

    def refused(
        self, program: str, *words: str, env: dict[str, str] | None = None, status: int = 1
    ) -> dict[str, Any]:
        """Return the only error that a program prints: one line on standard error, nothing on standard
        output.
        """
        return programs.error(self.run(program, *words, env=env), status)

    def create(self, image: str, *more: str, cls: type[Sandbox] | None = None) -> Sandbox:
        words = ("--image", image, "--workspace-bind-root", str(self.workspace), *more)
        record = self.do("manager", "create_sandbox", *words)
        leaks.note("sandbox", record["id"])
        kind = cls or (Sandbox if image == "host" else Container)
        return kind(self, record["id"], record["shared_base"]["root_hash"])

    def refused_create(self, image: str, root: str | Path | None = None, **env: str) -> dict[str, Any]:
        where = str(root or self.workspace)
        return self.refused(
            "manager", "create_sandbox", "--image", image, "--workspace-bind-root", where, env=env
        )

    def make_state(self) -> None:
        """Make the state directory before a program does: the test mounts something there."""
        self.state.mkdir(exist_ok=True)
        if self.person.uid is not None:
            os.chown(self.state, self.person.uid, self.person.uid)

    def destroy_all(self) -> None:
        """Remove what a failed test has left. Without a record no gateway is started for this."""
        if not self.records():
            return
        for record in self.do("manager", "list_sandboxes")["sandboxes"]:
            self.do("manager", "destroy_sandbox", "--sandbox-id", record["id"])

    def stop(self) -> None:
        done = self.run("eos", "gateway", "stop")
        assert done.returncode == 0, done.stderr

    def left_in_state(self) -> list[str]:
        """Return what a refused or destroyed sandbox left: its directory, its record, a probe's directory."""
        own = ("gateway.", "instance_id", "registry.json")
        folders = ("sandboxes", "exports", "export-records", "import-records")
        found = [
            name
            for name in sorted(os.listdir(self.state))
            if not name.startswith(own) and name not in folders
        ]
        for folder in folders:
            if (self.state / folder).exists():
                found += [
                    f"{folder}/{name}"
                    for name in os.listdir(self.state / folder)
                    if not name.endswith(reserve.SUFFIX)
                ]
        return found + [record["id"] for record in self.records()]

    def records(self) -> list[dict[str, Any]]:
        """Return the sandboxes in the registry file."""
        try:
            found: list[dict[str, Any]] = json.loads((self.state / "registry.json").read_text())["sandboxes"]
        except FileNotFoundError:
            return []
        return found


class Sandbox:
    """One sandbox of the local provider. `store` is its layer stack, as root of this machine sees it."""

    def __init__(self, desk: Desk, sandbox_id: str, base_hash: str) -> None:
        self.desk, self.id, self.base_hash = desk, sandbox_id, base_hash

    @property
    def store(self) -> Path:
        return self.desk.state / "sandboxes" / self.id / "layer-stack"

    def do(self, op: str, *words: str) -> dict[str, Any]:
        return self.desk.do("runtime", "--sandbox-id", self.id, op, *words)

    def refused(self, op: str, *words: str) -> dict[str, Any]:
        return self.desk.refused("runtime", "--sandbox-id", self.id, op, *words)

    def shell(self, cmd: str, session: str | None = None, *words: str) -> dict[str, Any]:
        """Run a command and return its result, also of a failed one."""
        more = ("--workspace-session-id", session) if session else ()
        return self.do("exec_command", "--yield-time-ms", "30000", *more, *words, cmd)

    def read(self, path: str, session: str | None = None) -> str:
        more = ("--workspace-session-id", session) if session else ()
        return str(self.do("file_read", "--path", path, *more)["content"])

    def write(self, path: str, content: str, session: str | None = None) -> None:
        more = ("--workspace-session-id", session) if session else ()
        self.do("file_write", "--path", path, "--content", content, *more)

    def session(self, *words: str) -> str:
        return str(self.do("create_workspace_session", *words)["workspace_session_id"])

    def destroy(self) -> None:
        assert self.desk.do("manager", "destroy_sandbox", "--sandbox-id", self.id)["state"] == "stopped"

    # The kernel's view

    def agent(self) -> int:
        return int(json.loads((self.desk.state / "sandboxes" / self.id / "endpoint.json").read_text())["pid"])

    def zygote(self) -> int:
        return min(children_of(self.agent()))

    def everything(self) -> list[int]:
        """Return every process of the sandbox, the agent first."""
        return [self.agent(), *descendants(self.agent())]

    def wipe_run_directories(self) -> None:
        """Remove `run/`, which no reboot keeps."""
        shutil.rmtree(self.desk.state / "sandboxes" / self.id / "run")

    def log(self) -> str:
        return (self.desk.state / "sandboxes" / self.id / "daemon.log").read_text()

    def runner(self, session: str) -> int:
        """Return the init of a session: the zygote's child whose mounts contain the session's upper."""
        (found,) = [
            pid for pid in children_of(self.zygote()) if session in mountinfo(pid) and is_first(pid)
        ]  # not its file helper
        return found

    def members(self, session: str) -> list[int]:
        runner = self.runner(session)
        return [runner, *descendants(runner)]

    def uppers(self) -> list[Path]:
        """Return every directory that a session writes or wrote into."""
        return sorted(
            [
                *self.store.glob("sessions/*/upper"),
                *self.store.glob("drafts/*/*/"),
                *self.store.glob("layers/*/"),
            ]
        )

    def uppers_in_use(self) -> list[str]:
        return [str(path) for path in self.uppers() if overlay.in_use(str(path), ELSEWHERE)]


class Container(Sandbox):
    """One sandbox of the Docker provider, on an engine of this machine."""

    @property
    def store(self) -> Path:
        return Path(engine.mountpoint(f"{self.id}-layer-stack"))

    def agent(self) -> int:
        first = engine.first_pid(self.id)
        return next(
            pid for pid in descendants(first) if b"sandbox-daemon\0serve\0" in cmdline(pid)
        )  # a parent comes before its children

    def everything(self) -> list[int]:
        first = engine.first_pid(self.id)
        return [first, *descendants(first)]

    def wipe_run_directories(self) -> None:
        """Do nothing: these directories of a container are its own; the engine restarts it by itself."""

    def log(self) -> str:
        done = subprocess.run(
            ["docker", "logs", self.id],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout + done.stderr

    def restart(self) -> None:
        docker("restart", "-t", "5", self.id)

    def destroy(self) -> None:
        super().destroy()
        assert in_engine(self.id) == []
        engine.remove_volume(f"eos-shared-base-{self.base_hash}")


class Watched(NamedTuple):
    """A process that must end, held by a pidfd, so that its pid cannot become another process's."""

    pid: int
    descriptor: int


def watch(pids: Iterable[int]) -> list[Watched]:
    return [Watched(pid, os.pidfd_open(pid)) for pid in pids]


def living(watched: Iterable[Watched], *, wait_s: float = LEFT_WAIT_S) -> list[int]:
    """Return the processes that have not ended within the timeout; the descriptors are closed."""
    found: list[int] = []
    for one in watched:
        if not select.select([one.descriptor], [], [], wait_s)[0]:
            found.append(one.pid)
        os.close(one.descriptor)
    return found


def docker(*words: str) -> str:
    done = subprocess.run(
        ["docker", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def assert_error(error: dict[str, Any], reason: str, *names: str, kind: str = "internal_error") -> None:
    """Check that an error has the reason, names the object in its text, and has a next step in the text or as
    a hint.
    """
    assert (error["kind"], error["details"].get("reason")) == (kind, reason), error
    for name in names:
        assert name in error["message"], error
    assert "\n" not in error["message"] and "Traceback" not in str(error) and error["details"].get("hint"), (
        error
    )
