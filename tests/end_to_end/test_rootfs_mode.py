"""`rootfs: read_only` and `shared`: what a session may write beside its workspace, in both providers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .cli_user import Container, Desks, docker

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]
TRY = (
    "for d in / /bin /etc /var /root /tmp /dev/shm .; do touch $d/eos-tried 2>/dev/null && echo $d; "
    "done; true"
)


@pytest.mark.parametrize("who", ["root", pytest.param("ordinary", marks=pytest.mark.needs("uid"))])
def test_a_local_session_writes_its_workspace_and_folders_of_its_own_whatever_it_asks_for(
    shared_desk: Desks, who: str
) -> None:
    sandbox = shared_desk(who).create("host")
    session, other = sandbox.session("--rootfs", "shared"), sandbox.session("--rootfs", "read_only")
    assert sandbox.shell(TRY, session)["output"].split() == ["/tmp", "/dev/shm", "."]
    assert (
        sandbox.shell("ls /tmp/eos-tried /dev/shm/eos-tried eos-tried 2>/dev/null; true", other)["output"]
        == ""
    )
    assert sandbox.shell(TRY, other)["output"].split() == ["/tmp", "/dev/shm", "."]
    sandbox.do("publish_workspace_session", "--workspace-session-id", session)
    assert sandbox.read("eos-tried") == ""
    sandbox.destroy()


@pytest.mark.needs("dockerd")
def test_in_a_container_the_root_is_shared_and_writable_or_read_only_for_one_session(
    shared_desk: Desks, image: Callable[[str], str]
) -> None:
    sandbox = shared_desk("root").create(image("busybox"))
    shared, tight, other = (
        sandbox.session(),
        sandbox.session("--rootfs", "read_only"),
        sandbox.session("--rootfs", "read_only"),
    )
    assert sandbox.shell(TRY, tight)["output"].split() == ["/tmp", "/dev/shm", "."]
    assert sandbox.shell("ls /tmp/eos-tried eos-tried 2>/dev/null; true", other)["output"] == ""
    everywhere = sandbox.shell(TRY, shared)["output"].split()
    assert {"/", "/bin", "/etc", "/root", "/tmp", "/dev/shm", "."} <= set(everywhere)
    seen = sandbox.shell("ls /etc/eos-tried /tmp/eos-tried 2>/dev/null; true", other)["output"].split()
    assert seen == ["/etc/eos-tried"], "the root is the same one, /tmp is its own"
    assert sandbox.shell("ls /etc/eos-tried /tmp/eos-tried", sandbox.session())["output"].split() == [
        "/etc/eos-tried",
        "/tmp/eos-tried",
    ]
    sandbox.do("publish_workspace_session", "--workspace-session-id", tight)
    assert sandbox.read("eos-tried") == ""
    assert isinstance(sandbox, Container)
    sandbox.destroy()
    assert docker("ps", "-aq", "--filter", f"name={sandbox.id}") == ""
