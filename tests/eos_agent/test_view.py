"""What a session sees: where the workspace may lie, what is hidden, another root."""

from __future__ import annotations

import os
import shutil

import pytest

from eos_agent.wire.protocol import OperationError

from .bare_zygote import Box, in_box

as_root = pytest.mark.needs("root", "overlay")
both_namespaces = pytest.mark.parametrize(
    "namespace",
    [pytest.param("trusted", marks=as_root), pytest.param("user", marks=pytest.mark.needs("userns"))],
)


async def look(box: Box) -> str:
    live = await box.session()
    return (
        await live.run(
            f"pwd; cat hello; echo x > made && echo written; ls {box.workspace}; ls -A {box.top} 2>&1"
        )
    ).out


@both_namespaces
@pytest.mark.parametrize(
    "place", ["TOP/ws", "TOP/home/deep/er/ws", "TOP/private/inside/ws", "/dev/shm/eos-test-ws", "TOP"]
)
def test_the_workspace_is_at_its_own_path_wherever_that_lies(namespace: str, place: str) -> None:
    try:
        out = in_box(look, namespace=namespace, workspace=place)
    finally:
        if place.startswith("/dev/shm"):
            shutil.rmtree(place, ignore_errors=True)
    lines = out.split("\n")
    assert lines[0].endswith(place.replace("TOP", "")) and lines[1:3] == ["hello", "written"]
    assert {"hello", "made", "pkg"} <= set(lines)


@both_namespaces
def test_a_workspace_at_the_home_folder_itself_hides_what_lies_below(namespace: str) -> None:
    async def scenario(box: Box) -> str:
        live = await box.session()
        return (await live.run("cat .ssh/id; ls -A")).out

    def before(top: str) -> None:
        os.makedirs(f"{top}/home/.ssh")
        with open(f"{top}/home/.ssh/id", "w") as f:
            f.write("secret")

    out = in_box(scenario, namespace=namespace, workspace="TOP/home", before_fork=before)
    assert "secret" not in out and "hello" in out


@both_namespaces
def test_hidden_folders_look_empty_and_nothing_of_a_mount_below_them_is_left(namespace: str) -> None:
    async def scenario(box: Box) -> str:
        live = await box.session()
        return (
            await live.run(
                f"ls -A {box.top}/store {box.top}/private; mkdir {box.top}/private/x; grep {box.top} "
                f"/proc/self/mountinfo"
            )
        ).out

    lines = in_box(
        scenario, namespace=namespace, provider="docker", hidden=["TOP/store", "TOP/private"]
    ).split("\n")
    mounts = [line for line in lines if " / /" in line]
    assert (
        all("tmpfs" in m or "overlay" in m for m in mounts) and len(mounts) == 3
    )  # two masks and the workspace
    assert sum("Read-only" in line for line in lines) == 1


@as_root
def test_a_read_only_session_of_a_docker_sandbox_has_its_own_tmp_and_cannot_write_the_root() -> None:
    async def scenario(box: Box) -> tuple[str, str]:
        script = (
            "touch /usr/eos-was-here; ls -A /tmp /run; echo x > /tmp/made; ls /tmp; echo x > made && "
            "echo written"
        )
        tight = await box.session(rootfs_mode="read_only")
        open_ = await box.session()
        return (await tight.run(script)).out, (await open_.run("ls -A /tmp | grep -c eos-b-")).out

    tight, shared = in_box(scenario, provider="docker")
    assert "Read-only file system" in tight and "made\nwritten" in tight
    assert int(shared) >= 1  # the shared one sees the sandbox's own /tmp


def busybox_root(top: str) -> str:
    busybox = shutil.which("busybox", path="/bin:/usr/bin")
    if busybox is None:
        raise RuntimeError("no busybox")
    root = f"{top}/home/root"
    os.makedirs(f"{root}/bin")
    os.makedirs(f"{root}/etc")
    shutil.copy(busybox, f"{root}/bin/busybox")
    for name in ("sh", "ls", "cat", "touch", "ps", "grep", "tty"):
        os.symlink("busybox", f"{root}/bin/{name}")
    with open(f"{root}/etc/os-release", "w") as f:
        f.write("NAME=tiny\n")
    return root


@both_namespaces
@pytest.mark.needs("busybox")
def test_a_rootfs_folder_is_the_root_of_the_session_and_stays_as_it_is(namespace: str) -> None:
    async def scenario(box: Box) -> tuple[str, list[str], list[str] | None]:
        live = await box.session()
        script = (
            "cat /etc/os-release; ls /; pwd; cat hello; echo x > made && ls; touch /bin/evil; ls /dev; "
            "ps | grep -c ."
        )
        done = await live.run(script, env={"PATH": "/bin"})
        terminal = await live.run("tty", tty=True, env={"PATH": "/bin"})
        return (
            done.out + terminal.out,
            sorted(os.listdir(f"{box.top}/home/root")),
            await live.init.which_shell(),
        )

    out, left, shell = in_box(scenario, namespace=namespace, rootfs=busybox_root)
    assert out.startswith("NAME=tiny\nbin\ndev\netc\nproc\nrun\nsys\ntmp\n")
    assert "\nhello\n" in out and "Read-only file system" in out and "/dev/pts/0" in out and "urandom" in out
    assert left == ["bin", "etc"] and shell == ["/bin/sh", "-c"]


@both_namespaces
def test_an_empty_rootfs_has_no_shell_and_says_what_is_missing(namespace: str) -> None:
    async def scenario(box: Box) -> tuple[list[str] | None, str]:
        live = await box.session()
        shell = await live.init.which_shell()
        try:
            await live.run(["/bin/sh", "-c", "true"])
        except OperationError as error:
            result, _ = await live.init.file_op(
                "read", {"path": "hello", "offset": 1, "limit": 10, "max_bytes": 1000}
            )
            assert "hello" in str(result)
            return shell, f"{error.details['reason']} {error.details['errno']}"
        raise AssertionError("ran a shell that is not there")

    assert in_box(scenario, namespace=namespace, rootfs=lambda top: f"{top}/home") == (
        None,
        "exec_failed ENOENT",
    )
