"""Many sessions at once, file operations, and what an agent and its idle sessions keep in memory."""

from __future__ import annotations

import concurrent.futures
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harness import Row, Series, check, in_turn, timed, token
from benchmarks.place import Place
from benchmarks.rows import fsync_loop, run

AT_ONCE = 50
IDLE = (20, 200)


def fifty(place: Place) -> Iterator[Row]:
    """Fifty explicit sessions asked for at once, each then says something random; beside fifty plain shells
    at once.
    """
    made: list[float] = []
    beside: list[float] = []
    with place.sandbox("host") as sandbox, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for n in range(6):
            sessions: list[str] = []

            def create(_: int) -> str:
                return str(place.ask("create_workspace_session", {}, sandbox)["workspace_session_id"])

            def all_of_them(sessions: list[str] = sessions) -> None:
                sessions += pool.map(create, range(AT_ONCE))

            def shell(want: str) -> None:
                check(run(["/bin/sh", "-c", f"echo {want}"]), want)

            def shells() -> None:
                list(pool.map(shell, [token() for _ in range(AT_ONCE)]))

            ms, other = timed(all_of_them), timed(shells)
            want = token()
            check(
                place.ask(
                    "exec_command", {"cmd": f"echo {want}", "workspace_session_id": sessions[-1]}, sandbox
                )["output"],
                want,
            )

            def destroy(session: str) -> None:
                place.ask("destroy_workspace_session", {"workspace_session_id": session}, sandbox)

            list(pool.map(destroy, sessions))
            if n:
                made.append(ms)
                beside.append(other)
    ours, other_side = Series("eos", tuple(made)), Series(f"{AT_ONCE} x sh", tuple(beside))
    yield Row(
        f"create {AT_ONCE} sessions at once",
        ours,
        other_side,
        "<= 500 ms",
        "clones one after the other: pages copied, mounts",
    )


COMMANDS = 8
BWRAP = (
    "bwrap",
    "--ro-bind",
    "/",
    "/",
    "--dev",
    "/dev",
    "--proc",
    "/proc",
    "--tmpfs",
    "/tmp",
    "--unshare-pid",
    "--unshare-ipc",
    "/bin/sh",
    "-c",
)


def exec_at_once(place: Place) -> Iterator[Row]:
    """Eight echoes at once in one session beside eight shells at once; where bwrap is installed, one echo
    beside one in a sandbox of bwrap's.
    """
    with place.sandbox("host") as sandbox, concurrent.futures.ThreadPoolExecutor(COMMANDS) as pool:
        session = place.ask("create_workspace_session", {}, sandbox)["workspace_session_id"]

        def ours(want: str) -> None:
            check(
                place.ask(
                    "exec_command",
                    {"cmd": f"echo {want}", "workspace_session_id": session, "tty": False},
                    sandbox,
                )["output"],
                want,
            )

        def shell(want: str) -> None:
            check(run(["/bin/sh", "-c", f"echo {want}"]), want)

        def eight(of: Callable[[str], None]) -> Callable[[], None]:
            return lambda: list(pool.map(of, [token() for _ in range(COMMANDS)])).clear()

        mine, other = in_turn([("eos", eight(ours)), (f"{COMMANDS} x sh", eight(shell))], runs=60)
        yield Row(
            f"{COMMANDS} execs at once in one session",
            mine,
            other,
            "-",
            "eight shells on the processors that there are",
        )
        if shutil.which(BWRAP[0]):
            mine, other = in_turn(
                [("eos", lambda: ours(token())), ("bwrap sh", lambda: wrapped(token()))], runs=100
            )
            yield Row(
                "exec of a random echo, pipes, beside bwrap",
                mine,
                other,
                "<= 2.0 ms",
                "the shell's own start, JSON over sockets",
            )


def wrapped(want: str) -> None:
    check(run([*BWRAP, f"echo {want}"]), want)


class File:
    """A file that is written with something random and read back, in a session or on the head."""

    def __init__(self, place: Place, sandbox: str, args: dict[str, str]) -> None:
        self.place, self.sandbox, self.args = place, sandbox, {"path": "written.txt", **args}
        self.content = ""

    def write(self) -> None:
        self.content = token()
        self.place.ask("file_write", {**self.args, "content": self.content}, self.sandbox)

    def read(self) -> None:
        check(self.place.ask("file_read", self.args, self.sandbox)["content"], self.content)


def files(place: Place) -> Iterator[Row]:
    """file_read and file_write in a live session and on the head, beside a `cat` process and the loop."""
    folder = Path(tempfile.mkdtemp(prefix="loop", dir=place.home))
    with place.sandbox("host") as sandbox:
        session = place.ask("create_workspace_session", {}, sandbox)["workspace_session_id"]
        there: tuple[tuple[str, dict[str, str]], ...] = (
            ("in a session", {"workspace_session_id": session}),
            ("on the head", {}),
        )
        for where, args in there:
            file = File(place, sandbox, args)
            file.write()
            reads, cat = in_turn(
                [("eos", file.read), ("cat", lambda: run(["cat", "/proc/self/comm"]))], runs=60
            )
            writes, loop = in_turn(
                [("eos", file.write), ("write, fsync, rename", lambda: fsync_loop(folder, token(), 1))],
                runs=60,
            )
            file.read()
            yield Row(f"file_read {where}", reads, cat, "no more than exec", "JSON over the sockets")
            goal = "no more than exec" if args else "<= 2x the loop + 1 ms"
            yield Row(
                f"file_write {where}",
                writes,
                loop,
                goal,
                "JSON over the sockets" if args else "a publication with its syncs",
            )


def memory(place: Place) -> Iterator[Row]:
    """Proportional set size of agent and zygote, and what each idle session has for itself."""
    for count in IDLE:
        with place.sandbox("host") as sandbox:
            for _ in range(count):
                place.ask("create_workspace_session", {}, sandbox)
            agent = int(
                json.loads((place.home / "state" / "sandboxes" / sandbox / "endpoint.json").read_text())[
                    "pid"
                ]
            )
            zygote = min(children_of(agent))
            sessions = [
                pid
                for pid in children_of(zygote)
                if " - overlay " in Path(f"/proc/{pid}/mountinfo").read_text()
            ]
            assert len(sessions) == count, sessions
            own = tuple(memory_of(pid, "Private_Clean", "Private_Dirty") / 1024 for pid in sessions)
            both = (memory_of(agent, "Pss") + memory_of(zygote, "Pss")) / 1024
        pages = (
            "stack, data and a buffer of init.c; without a compiler the pages that the interpreter writes to"
        )
        yield Row(
            f"memory of an idle session, {count} of them (USS)",
            Series("eos", own),
            None,
            "<= 0.4 MB",
            pages,
            "MB",
        )
        yield Row(
            f"agent and zygote, {count} sessions (PSS)",
            Series("eos", (both,)),
            None,
            "<= 35 MB",
            "the interpreter and asyncio",
            "MB",
        )


def children_of(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def memory_of(pid: int, *fields: str) -> int:
    """The sum of these fields of smaps_rollup in KB."""
    found = dict(
        re.findall(r"^(\w+):\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    )
    return sum(int(found[field]) for field in fields)
