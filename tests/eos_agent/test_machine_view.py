"""What a local session sees of the machine: as it is when a command begins, without what is hidden, whichever
mount shows it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from eos_agent.handles import freshness
from eos_agent.kernel import machine_view
from eos_agent.machine import secret_paths
from layerstack.kernel import syscalls
from tests import in_namespace

from .bare_zygote import Box, in_box

as_root = pytest.mark.needs("root", "overlay")
both_namespaces = pytest.mark.parametrize(
    "namespace",
    [pytest.param("trusted", marks=as_root), pytest.param("user", marks=pytest.mark.needs("userns"))],
)


def in_machine(
    scenario: Callable[..., object], namespace: str, before_fork: Callable[[str], None] | None = None
) -> object:
    return in_box(scenario, namespace=namespace, parent="/var/tmp", before_fork=before_fork)  # type: ignore[arg-type]


@both_namespaces
def test_a_command_sees_what_was_made_replaced_and_removed_on_the_machine_since_the_one_before(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness, "PAUSE_S", 0.0)
    monkeypatch.setattr(freshness, "SHARE", 0)

    async def scenario(box: Box) -> list[str]:
        folder = Path(box.top, "tools")
        (folder / "sub").mkdir(parents=True)
        (folder / "old").write_text("first")
        (folder / "gone").write_text("there")
        script = (
            f"cd {folder}; for f in old new gone sub/new; do cat $f 2>/dev/null || echo none; done; ls sub"
        )
        live = await box.session()
        found = [(await live.run(script)).out]
        (folder / "new").write_text("new")
        (folder / "sub/new").write_text("below")
        (folder / "next").write_text("second")
        os.rename(folder / "next", folder / "old")
        os.unlink(folder / "gone")
        return [*found, (await live.run(script)).out]

    assert in_machine(scenario, namespace) == ["firstnone\ntherenone\n", "secondnewnone\nbelownew\n"]


@both_namespaces
def test_a_secret_that_is_made_after_the_sandbox_is_hidden_from_the_sessions_that_come(
    namespace: str,
) -> None:
    """Its folder may be new as well."""

    async def scenario(box: Box) -> tuple[str, str]:
        before = await box.session()
        for name in (".npmrc", ".config/gcloud/key", ".m2/settings.xml"):
            path = Path(box.top, "home", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("secret")
        Path(box.top, "home/.config/harmless").write_text("shown\n")
        look = f"cd {box.top}/home; cat .npmrc .config/gcloud/key .m2/settings.xml; cat .config/harmless"
        return (await before.run("cat " + f"{box.top}/home/.npmrc")).out, (
            await (await box.session()).run(look)
        ).out

    first, second = in_machine(scenario, namespace)  # type: ignore[misc]
    assert "secret" not in first + second and second.endswith("shown\n")


@both_namespaces
def test_tools_that_have_their_settings_beside_secrets_keep_the_settings(namespace: str) -> None:
    def before(top: str) -> None:
        for name in (
            ".config/git/config",
            ".config/git/credentials",
            ".cargo/config.toml",
            ".cargo/credentials.toml",
            ".gitconfig",
        ):
            path = Path(top, "home", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name}\n")

    async def scenario(box: Box) -> str:
        live = await box.session()
        return (
            await live.run(
                f"cd {box.top}/home; cat .gitconfig .config/git/* .cargo/*; stat -c %a .config .cargo"
            )
        ).out

    assert (
        in_machine(scenario, namespace, before)
        == ".gitconfig\n.config/git/config\n.cargo/config.toml\n755\n755\n"
    )


@both_namespaces
def test_a_link_to_a_secret_and_what_it_points_to_are_both_hidden(namespace: str) -> None:
    def before(top: str) -> None:
        os.mkdir(f"{top}/elsewhere")
        Path(f"{top}/elsewhere/id").write_text("secret")
        os.symlink(f"{top}/elsewhere", f"{top}/home/.ssh")

    async def scenario(box: Box) -> str:
        live = await box.session()
        return (
            await live.run(
                f"cat {box.top}/home/.ssh/id {box.top}/elsewhere/id; ls -A {box.top}/home; echo end"
            )
        ).out

    assert (
        "secret" not in str(found := in_machine(scenario, namespace, before))
        and str(found).endswith("end\n")
        and ".ssh\n" not in str(found)
    )


@as_root
def test_the_root_of_the_machine_mounted_once_more_shows_no_more(tmp_path: Path) -> None:
    """`mount --bind / /srv/mnt2` before the sandbox."""

    def before(top: str) -> None:
        os.mkdir(f"{top}/machine")
        Path(f"{top}/private/token").write_text("secret")
        syscalls.mount("/", f"{top}/machine", None, syscalls.MS_BIND)

    async def scenario(box: Box) -> str:
        try:
            live = await box.session()
            return (
                await live.run(
                    f"cat {box.top}/machine{box.top}/private/token; ls {box.top}/machine/etc/passwd"
                )
            ).out
        finally:
            syscalls.umount(f"{box.top}/machine", syscalls.MNT_DETACH)

    found = str(in_machine(scenario, "trusted", before))
    assert "secret" not in found and found.endswith("/etc/passwd\n")


def test_the_list_holds_what_people_keep_keys_in() -> None:
    wanted = {
        ".git-credentials",
        ".npmrc",
        ".pypirc",
        ".vault-token",
        ".pgpass",
        ".config/gh",
        ".config/gcloud",
        ".azure",
        ".claude",
    }
    wanted |= {
        ".claude.json",
        ".codex",
        ".gemini",
        ".local/share/keyrings",
        ".password-store",
        ".bash_history",
        ".zsh_history",
        ".mozilla",
    }
    assert wanted <= set(secret_paths.SECRET_NAMES)
    assert all(
        name == os.path.normpath(name) and not name.startswith("/") for name in secret_paths.SECRET_NAMES
    )
    assert len(set(secret_paths.SECRET_NAMES)) == len(secret_paths.SECRET_NAMES)


@as_root
def test_what_lies_over_an_overlay_of_ours_is_left_alone_when_that_looks_again() -> None:
    """Configuring it again would make it read-only, and it may be a file system of the machine."""

    def in_child(top: str) -> bool:
        for name in ("one", "two", "at"):
            os.mkdir(f"{top}/{name}")
        syscalls.mount(
            "eos-view", f"{top}/at", "overlay", syscalls.MS_RDONLY, f"lowerdir={top}/one:{top}/two"
        )
        syscalls.mount("tmpfs", f"{top}/at", "tmpfs")
        machine_view.refresh(os.getpid())
        Path(top, "at/written").write_text("x")
        return True

    top = tempfile.mkdtemp(prefix="eos-test-", dir="/var/tmp")
    try:
        assert in_namespace.call("trusted", in_child, top)
    finally:
        shutil.rmtree(top)
