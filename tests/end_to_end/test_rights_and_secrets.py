"""The right to mount, and secrets of commands and of the agent, through the programs."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docker.models.containers import ContainerCollection

from eos_agent.wire.protocol import OperationError
from layerstack.kernel import syscalls
from tests import in_namespace
from tests.end_to_end.docker_place import Place
from tests.end_to_end.docker_place import place as place
from tests.processes import pids

from .cli_user import Desks
from .manager_fixture import Host, records

IN_DOCKER = pytest.mark.needs("dockerd")
CAP_SYS_ADMIN = 21
Image = Callable[[str], str]

PRELOADED = """
static long call(long number, long a, long b, long c) {
#ifdef __x86_64__
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c, x3 __asm__("x3") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
#endif
}
__attribute__((constructor)) static void begin(void) {
#ifdef __x86_64__
    call(83, (long)"/tmp/eos-preloaded", 0700, 0); /* mkdir */
#else
    call(34, -100, (long)"/tmp/eos-preloaded", 0700); /* mkdirat */
#endif
}
"""  # noqa: E501


# P5: isolation that failed must not run anything


@pytest.mark.needs("root", "overlay")
def test_without_the_right_to_mount_the_doctor_fails_a_create_is_refused_and_the_workspace_is_as_it_was(
    desk: Desks,
) -> None:
    at = desk("root", DOCKER_HOST="unix:///nonexistent.sock")

    def in_child() -> tuple[Any, ...]:
        syscalls.prctl(syscalls.PR_CAPBSET_DROP, CAP_SYS_ADMIN)
        doctor = at.run("eos", "doctor")
        try:
            return (
                doctor.returncode,
                doctor.stdout,
                at.refused_create("host"),
                at.left_in_state(),
                at.do("manager", "list_sandboxes"),
            )
        finally:
            at.stop()

    code, said, error, left, listed = in_namespace.call(None, in_child)
    (line,) = [line for line in said.splitlines() if line.startswith("FAIL local")]
    assert code == 1 and "CAP_SYS_ADMIN" in line and "nothing yet" in said
    assert error["details"]["reason"] == "mountns_forbidden" and left == [] and listed == {"sandboxes": []}
    assert sorted(str(path.relative_to(at.workspace)) for path in at.workspace.rglob("*")) == [
        ".id",
        "a.txt",
        "d",
        "d/b.txt",
    ]


@IN_DOCKER
def test_a_container_without_the_right_to_mount_is_no_sandbox_and_nothing_of_it_is_left(
    place: Place, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ContainerCollection.create

    def powerless(self: Any, image: str, **options: Any) -> Any:
        return real(self, image, **{**options, "cap_add": []})

    monkeypatch.setattr(ContainerCollection, "create", powerless)

    async def scenario(host: Host) -> OperationError:
        return await host.refused("create_sandbox", image=image("busybox"), workspace_root=place.workspace)

    error = place.play(scenario)
    assert (
        error.details["stage"] == "readiness"
        and "trusted.overlay" in error.message
        and "Operation not permitted" in error.message
    )
    assert place.containers() == [] and records(place.state) == []
    assert (
        os.listdir(place.workspace) == ["a.txt"]
        and Path(place.workspace, "a.txt").read_text() == f"one of {place.instance_id}\n"
    )


# M12: secrets in command lines


@IN_DOCKER
def test_a_secret_of_a_command_in_a_container_is_in_no_list_of_processes_no_log_no_label_and_no_file(
    place: Place, image: Image
) -> None:
    secret = f"s3cret-{os.urandom(12).hex()}"

    async def scenario(host: Host) -> dict[str, str]:
        sandbox_id = (await place.create(host, image("busybox")))["id"]
        try:
            session = (await host.ask(sandbox_id, "create_workspace_session"))["workspace_session_id"]
            options = {"workspace_session_id": session, "env": [f"SECRET={secret}"], "tty": False}
            command = await host.ask(
                sandbox_id,
                "exec_command",
                cmd='test -n "$SECRET" && echo has it; exec sleep 1000',
                yield_time_ms=0,
                **options,
            )
            said = {"command_session_id": command["command_session_id"], "start_offset": 0, "limit": 5}
            while "has it" not in (await host.ask(sandbox_id, "read_command_lines", **said))["output"]:
                pass
            (container,) = place.containers()
            container.reload()
            shown = {
                "inspect": str(container.attrs),
                "log": container.logs().decode(errors="replace"),
                "top": str(container.top()),
                "files": str(
                    container.exec_run(
                        ["grep", "-rlF", secret[:20], "/eos", "/tmp", "/workspace", "/etc"], stderr=False
                    ).output
                ),
                "progress": str(host.said),
                "arguments": "",
            }
            for pid in pids():
                try:
                    text = Path(f"/proc/{pid}/cmdline").read_bytes()
                except OSError:
                    continue
                if secret[:20].encode() in text and b"grep" not in text:
                    shown["arguments"] += f"{pid}: {text!r}"
            for op in ("list_commands", "list_workspace_sessions", "trace", "events", "snapshot", "topology"):
                shown[op] = str(await host.ask(sandbox_id, op))
            shown["state"] = "".join(
                path.read_bytes().decode(errors="replace")
                for path in Path(place.state).rglob("*")
                if path.is_file()
            )
            return shown
        finally:
            await host.do("destroy_sandbox", sandbox_id=sandbox_id)

    shown = place.play(scenario)
    assert [name for name, text in shown.items() if secret[:20] in text] == []
    assert shown["files"] == "b''", shown["files"]


# M13: the token of the agent


@IN_DOCKER
def test_the_agents_token_is_nowhere_in_a_session_nor_behind_a_link_that_was_published(
    place: Place, image: Image
) -> None:
    async def scenario(host: Host) -> tuple[str, list[str], list[str]]:
        sandbox_id = (await place.create(host, image("busybox")))["id"]
        try:
            token = str(records(place.state)[0]["token"])
            (container,) = place.containers()
            held = container.exec_run(
                ["grep", "-rlF", token, "/eos/runtime", "/eos/config"], stderr=False
            ).output.decode()
            halves = (
                f"a={token[:20]}; b={token[20:]}; echo $a$b > "
                f"/tmp/found; "
            )  # no command line holds it, and one file does
            look = (
                'for p in /proc/[0-9]*; do for f in environ mountinfo cmdline; do grep -lF "$a$b" $p/$f; '
                "done; done; "
                'grep -rlF "$a$b" /bin /etc /eos /tmp /workspace /dev/shm /run /root /var; true'
            )
            out: list[str] = []
            for rootfs in ("read_only", "shared"):
                session = (await host.ask(sandbox_id, "create_workspace_session", rootfs=rootfs))[
                    "workspace_session_id"
                ]
                in_session = {"workspace_session_id": session, "tty": False}
                out.append(
                    await host.run(
                        sandbox_id,
                        f"{halves}({look}) 2>/dev/null | grep -v '^/proc/[0-9]*/cmdline$'; true",
                        **in_session,
                    )
                )
            await host.run(
                sandbox_id,
                "ln -s /eos/runtime/daemon d; ln -s /eos/runtime/daemon/token t; ln -s / r; true",
                **in_session,
            )
            published = await host.ask(sandbox_id, "publish_workspace_session", workspace_session_id=session)
            assert published["publish"]["no_op"] is False, published
            other = (await host.ask(sandbox_id, "create_workspace_session"))["workspace_session_id"]
            replies = [
                str(await host.ask(sandbox_id, op, **args, **where))
                for where in ({}, {"workspace_session_id": other})
                for path in ("d/token", "t", "r/eos/runtime/daemon/token")
                for op, args in (
                    ("file_read", {"path": path}),
                    ("file_stat", {"path": path}),
                    ("file_edit", {"path": path, "edits": [{"old_string": token[:4], "new_string": "x"}]}),
                    ("file_write", {"path": path, "content": "x"}),
                    ("file_search", {"pattern": ".", "path": path.split("/")[0]}),
                )
            ]
            assert (
                container.exec_run(
                    ["grep", "-rlF", token, "/eos/runtime", "/eos/config"], stderr=False
                ).output.decode()
                == held
            )
            return held, out, [reply for reply in replies if token[:20] in reply]
        finally:
            await host.do("destroy_sandbox", sandbox_id=sandbox_id)

    held, out, leaking = place.play(scenario)
    assert held.split(), "nobody has the token in a file; this test proves nothing"
    assert leaking == []
    assert out == ["/tmp/found"] * 2


# The agent of a container stands in an image that every command may write


@IN_DOCKER
@pytest.mark.needs("musl")
def test_no_library_that_a_command_names_to_the_loader_gets_into_the_agent(
    place: Place, image: Image
) -> None:
    source, library = f"{place.root}/preloaded.c", f"{place.workspace}/preloaded.so"
    Path(source).write_text(PRELOADED)
    subprocess.run(
        ["musl-gcc", "-shared", "-fPIC", "-nostdlib", "-nostartfiles", "-o", library, source],
        check=True,
        capture_output=True,
    )

    async def scenario(host: Host) -> tuple[str, str]:
        sandbox_id = (await place.create(host, image("debian")))["id"]
        try:
            writing = (
                "cp preloaded.so /usr/lib/preloaded.so && echo /usr/lib/preloaded.so > "
                "/etc/ld.so.preload && cat /dev/null; ls -d /tmp/eos-preloaded"
            )
            works = await host.run(sandbox_id, f"{writing}; rmdir /tmp/eos-preloaded", tty=False)
            (container,) = place.containers()
            await asyncio.to_thread(container.restart, timeout=5)
            await host.read(sandbox_id, "a.txt")  # without a program of the image
            (container,) = place.containers()
            stat = await asyncio.to_thread(_archived, container, "/tmp/eos-preloaded")
            return works, stat
        finally:
            await host.do("destroy_sandbox", sandbox_id=sandbox_id)

    works, after = place.play(scenario)
    assert works == "/tmp/eos-preloaded", "the library does nothing; this test proves nothing"
    assert after == "absent"


def _archived(container: Any, path: str) -> str:
    from docker.errors import NotFound

    try:
        container.get_archive(path)
    except NotFound:
        return "absent"
    return "there"
