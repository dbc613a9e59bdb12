"""The rows. Each yields figures beside a baseline that was measured in the same run, call by call in turn."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harness import Row, Series, check, in_turn, timed, token
from benchmarks.place import Place, docker_image


def run(argv: list[str], *, timeout_s: float = 60, stdin: str | None = None) -> str:
    """The standard output of a whole process that must succeed."""
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=timeout_s, check=True, input=stdin
    ).stdout


def exec_in_session(place: Place) -> Iterator[Row]:
    """A random echo in a live session through the gateway, one connection a call; `docker exec` of the same
    in the same container.
    """
    image = docker_image()
    for where in ("host", *([image] if image else [])):
        with place.sandbox(where) as sandbox:
            session = place.ask("create_workspace_session", {}, sandbox)["workspace_session_id"]

            def ours(tty: bool, sandbox: str = sandbox, session: str = session) -> None:
                want = token()
                got = place.ask(
                    "exec_command",
                    {"cmd": f"echo {want}", "workspace_session_id": session, "tty": tty},
                    sandbox,
                )
                check(got["output"], want)

            def engine(sandbox: str = sandbox) -> None:
                want = token()
                check(run(["docker", "exec", sandbox, "sh", "-c", f"echo {want}"]), want)

            def shell() -> None:
                want = token()
                check(run(["/bin/sh", "-c", f"echo {want}"]), want)

            beside = ("docker exec", engine) if where != "host" else ("subprocess sh", shell)
            for tty in (True, False):

                def by_eos(tty: bool = tty, ours: Callable[[bool], None] = ours) -> None:
                    ours(tty)

                mine, other = in_turn([("eos", by_eos), beside], runs=100 if where == "host" else 40)
                name = f"exec of a random echo, {'pty' if tty else 'pipes'}, {where}"
                yield Row(
                    name,
                    mine,
                    other,
                    "<= 2.0 ms, p99 4; >= 20x docker exec",
                    "the shell's own start, then JSON over three sockets",
                )
                if (
                    where != "host"
                ):  # the engine is still clearing up after its exec when ours begins: the same without one before each  # noqa: E501
                    (alone,) = in_turn([("eos", by_eos)], runs=100)
                    takes = "the way through the engine's proxy of the port, then as on the machine"
                    yield Row(
                        f"{name}, docker exec not in turn",
                        alone,
                        other,
                        "<= 2.0 ms, p99 4; >= 20x docker exec",
                        takes,
                    )


def session_create(place: Place) -> Iterator[Row]:
    """An explicit session made and destroyed; only the creation counts."""
    with place.sandbox("host") as sandbox, tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        tree.mkdir()
        for n in range(3):
            (tree / f"f{n}").write_text(token())
        git = ["git", "-C", str(tree), "-c", "user.name=b", "-c", "user.email=b@example.org"]
        run([*git, "init", "-q"])
        run([*git, "add", "."])
        run([*git, "commit", "-qm", "base"])
        made: list[float] = []
        beside: list[float] = []
        for n in range(42):
            session: list[str] = []

            def create(session: list[str] = session) -> None:
                session.append(
                    str(place.ask("create_workspace_session", {}, sandbox)["workspace_session_id"])
                )

            def worktree_add(n: int = n) -> None:
                run([*git, "worktree", "add", "-q", "--detach", str(Path(folder, f"w{n}"))])

            ms = timed(create)
            place.ask("destroy_workspace_session", {"workspace_session_id": session[0]}, sandbox)
            other = timed(worktree_add)
            if n >= 2:
                made.append(ms)
                beside.append(other)
        ours, worktree = Series("eos", tuple(made)), Series("git worktree add", tuple(beside))
        yield Row(
            "create a session",
            ours,
            worktree,
            "<= 6 ms",
            "the overlay mount, the workspace moved into a runner that waits, hardening",
        )


def fsync_loop(folder: Path, content: str, count: int) -> None:
    """What publishing costs at least: the bytes, an fsync each, the folder, a rename, the folder above."""
    new = folder / token()
    new.mkdir()
    for n in range(count):
        with open(new / f"f{n}", "w") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    sync_folder(new)
    os.rename(new, folder / f"published-{token()}")
    sync_folder(folder)


def sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def one_shot(place: Place) -> Iterator[Row]:
    """exec without a session: create, run, publish one file, destroy; beside the loop that writes the same
    bytes durably.
    """
    folder = Path(tempfile.mkdtemp(prefix="loop", dir=place.home))
    image = docker_image()
    for where in ("host", *([image] if image else [])):
        with place.sandbox(where) as sandbox:

            def ours(sandbox: str = sandbox) -> None:
                want = token()
                got = place.ask("exec_command", {"cmd": f"echo {want} > out.txt; cat out.txt"}, sandbox)
                check(got["output"], want)

            mine, loop = in_turn(
                [("eos", ours), ("write, fsync, rename", lambda: fsync_loop(folder, token() + "\n", 1))],
                runs=40,
            )
            yield Row(
                f"one-shot exec that publishes one file, {where}",
                mine,
                loop,
                "<= loop + 8 ms",
                "the shell, the end of the pid namespace, the fsyncs of layer and manifest",
            )


def create_sandbox(place: Place) -> Iterator[Row]:
    """create_sandbox and a first exec, beside `docker run -d` and a first `docker exec`."""
    image = docker_image()
    if image is None:
        return
    workspace = Path(tempfile.mkdtemp(prefix="w", dir=place.home))
    (workspace / "a").write_text("a\n")
    mine: list[float] = []
    other: list[float] = []
    for n in range(7):
        made: list[str] = []

        def ours(made: list[str] = made) -> None:
            want = token()
            made.append(place.ask("create_sandbox", {"image": image, "workspace_root": str(workspace)})["id"])
            check(place.ask("exec_command", {"cmd": f"echo {want}"}, made[0])["output"], want)

        ms = timed(ours)
        place.ask("destroy_sandbox", {"sandbox_id": made[0]})
        name = f"eos-bench-{token()}"

        def engine(name: str = name) -> None:
            want = token()
            run(
                [
                    "docker",
                    "run",
                    "-d",
                    "--init",
                    "--name",
                    name,
                    "--label",
                    "eos.bench=1",
                    image,
                    "sleep",
                    "600",
                ]
            )
            check(run(["docker", "exec", name, "echo", want]), want)

        beside = timed(engine)
        run(["docker", "rm", "-f", name])
        if n:
            mine.append(ms)
            other.append(beside)
    row = Row(
        "create_sandbox and a first exec",
        Series("eos", tuple(mine)),
        Series("docker run -d, docker exec", tuple(other)),
        "<= 1.3x",
        "the engine's own start of the container",
    )
    yield row


def cli_process(place: Place) -> Iterator[Row]:
    """One whole CLI process, beside `docker ps` and a bare Python."""
    program = Path(sys.executable).with_name("sandbox-manager-cli")
    place.ask("list_sandboxes", {})

    def ours() -> None:
        check(run([str(program), "list_sandboxes"]), '{"sandboxes":[]}')

    def bare() -> None:
        want = token()
        check(run([sys.executable, "-c", f"print('{want}')"]), want)

    sides: list[tuple[str, Callable[[], object]]] = [("eos", ours), ("python -c print", bare)]
    if docker_image():
        sides.append(("docker ps", lambda: run(["docker", "ps", "-q"])))
    figures = in_turn(sides, runs=21)
    for other in figures[1:]:
        yield Row(
            "sandbox-manager-cli list_sandboxes",
            figures[0],
            other,
            "<= 45 ms",
            "the interpreter's start and site",
        )
