"""Files of a container that each of its sessions may replace, and that the agent or a C library below it
looks at.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from eos_agent.machine import plain_file
from tests.end_to_end.docker_place import Place
from tests.end_to_end.docker_place import place as place

from .manager_fixture import Host

PASSWD_IS_A_FIFO = "mv /etc/passwd /etc/passwd.kept && mkfifo /etc/passwd && echo ready"
READ_AT_A_START = (
    "/etc/localtime /usr/lib/locale/C.utf8/LC_CTYPE /usr/lib/locale/C.UTF-8/LC_CTYPE "
    "/usr/share/locale/locale.alias"
)
FIFOS = f"for f in {READ_AT_A_START}; do mkdir -p ${{f%/*}}; rm -f $f; mkfifo $f || exit 1; done; echo ready"


def test_lines_of_a_fifo_or_of_a_device_are_none_and_a_file_without_end_is_read_so_far(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_bytes(b"a:b\n")
    os.truncate(tmp_path / "large", 1 << 40)
    assert (
        plain_file.read_lines(str(tmp_path / "fifo"))
        == plain_file.read_lines("/dev/zero")
        == plain_file.read_lines("/none")
        == []
    )
    first, rest = plain_file.read_lines(str(tmp_path / "large"), 100)
    assert first == "a:b" and len(rest) == 96


@pytest.mark.needs("dockerd")
def test_a_passwd_that_a_session_made_a_fifo_stops_no_other_session(
    place: Place, image: Callable[[str], str]
) -> None:
    async def scenario(host: Host) -> tuple[str, str, str]:
        sandbox_id = str((await place.create(host, image("busybox")))["id"])
        other = str((await host.ask(sandbox_id, "create_workspace_session"))["workspace_session_id"])
        made = await host.run(sandbox_id, PASSWD_IS_A_FIFO, tty=False)
        by_number = await host.run(sandbox_id, "id -g", workspace_session_id=other, user="7", tty=False)
        after = await host.run(sandbox_id, "echo still here", workspace_session_id=other, tty=False)
        await host.do("destroy_sandbox", sandbox_id=sandbox_id)
        return made, by_number, after

    made, by_number, after = place.play(scenario)
    assert made == "ready" and after == "still here"
    assert by_number.strip() == "7"


@pytest.mark.needs("dockerd")
def test_what_sessions_put_where_libraries_look_holds_up_no_start(
    place: Place, image: Callable[[str], str]
) -> None:
    async def scenario(host: Host) -> tuple[str, str, str, str, str]:
        sandbox_id = str((await place.create(host, image("busybox")))["id"])
        (container,) = place.containers()
        container.reload()
        url = str((await host.do("forward_url", sandbox_id=sandbox_id, port=8000))["url"])
        assert "/forward/shared/8000/?eos_ticket=" in url, "as the example of its help calls it"
        address = (
            str(container.attrs["NetworkSettings"]["Networks"]["bridge"]["Gateway"]).rpartition(".")[0]
            + ".250"
        )
        added = await host.run(
            sandbox_id,
            f"echo kept > kept.txt; echo nameserver {address} >> /etc/resolv.conf; tail -n 1 "
            f"/etc/resolv.conf",
        )
        made = await host.run(sandbox_id, FIFOS, tty=False)
        await asyncio.to_thread(container.restart, timeout=5)
        kept = await host.read(sandbox_id, "kept.txt")
        routes = await host.run(sandbox_id, "cat /proc/net/route", tty=False)
        await host.do("destroy_sandbox", sandbox_id=sandbox_id)
        return address, added, made, kept, routes

    address, added, made, kept, routes = place.play(scenario)
    assert added == f"nameserver {address}" and made == "ready" and kept == "kept"
    assert bytes(int(part) for part in address.split("."))[::-1].hex().upper() not in routes, (
        "a session chose a neighbour that stays reachable"
    )
