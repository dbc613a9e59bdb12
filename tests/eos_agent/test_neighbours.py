"""What gateways note for each other, and where engines say that their data is."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from eos_agent.machine import engine_roots, neighbours, secret_paths

from .bare_zygote import Box, in_box


def test_a_note_names_folders_for_others_until_they_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_paths, "homes", lambda: [str(tmp_path)])
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        neighbours.note(str(tmp_path), [str(tmp_path / name), "/"])
    assert set(neighbours.folders()) == {str(tmp_path / "one"), str(tmp_path / "two")}
    register = tmp_path / neighbours.REGISTER
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in register.iterdir())
    (tmp_path / "one").rmdir()
    neighbours.note(str(tmp_path), [str(tmp_path / "two"), "/"])
    assert len(list(register.iterdir())) == 1 and neighbours.folders() == [str(tmp_path / "two")]


def test_a_note_counts_for_what_belongs_to_its_writer_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_paths, "homes", lambda: [str(tmp_path)])
    register = tmp_path / neighbours.REGISTER
    register.mkdir(parents=True)
    strange = "/usr" if os.geteuid() != 0 else str(tmp_path / "strange")
    if os.geteuid() == 0:
        (tmp_path / "strange").mkdir()
        os.chown(strange, 34567, 34567)
    for number, text in enumerate(
        (
            json.dumps({"format": 1, "folders": [strange, "relative", 7, "/", f"{tmp_path}\0"]}),
            json.dumps({"format": 2, "folders": [str(tmp_path)]}),
            json.dumps([1]),
            "{",
        )
    ):
        (register / f"{number}.json").write_text(text)
    os.symlink("/etc/passwd", register / "link.json")
    os.mkfifo(register / "fifo.json")
    assert neighbours.folders() == []


@pytest.mark.parametrize(
    "namespace",
    [
        pytest.param("trusted", marks=pytest.mark.needs("root", "overlay")),
        pytest.param("user", marks=pytest.mark.needs("userns")),
    ],
)
def test_sessions_see_no_folder_of_a_gateway_that_was_there_before_or_comes_later(namespace: str) -> None:
    def gateway(top: str, name: str) -> None:
        os.mkdir(f"{top}/{name}")
        Path(f"{top}/{name}/token").write_text("secret")
        neighbours.note(f"{top}/home", [f"{top}/{name}"])

    async def scenario(box: Box) -> list[str]:
        first = await box.session()
        look = f"cat {box.top}/before/token {box.top}/later/token; echo end"
        seen = [(await first.run(look)).out]
        neighbours.note(
            f"{box.top}/home", [f"{box.top}/long-gone", f"{box.top}/later"]
        )  # of a gateway that ran here before
        seen.append((await first.run(look)).out)
        running = await first.start(f"while ! [ -e go ]; do sleep 0.1; done; {look}")
        gateway(box.top, "later")
        seen.append((await (await box.session()).run(look)).out)
        seen.append((await first.run(look)).out)
        await first.run("touch go")
        seen.append((await running.ended()).out)
        shutil.rmtree(f"{box.top}/later")
        gateway(box.top, "later")
        seen.append((await (await box.session()).run(look)).out)
        seen.append((await first.run(look)).out)
        return seen

    for found in in_box(
        scenario, namespace=namespace, parent="/var/tmp", before_fork=lambda top: gateway(top, "before")
    ):
        assert "secret" not in found and found.endswith("end\n")


@pytest.mark.needs("root", "overlay")
def test_a_command_that_runs_on_hears_of_a_gateway_that_begins_meanwhile() -> None:
    """Without any other command or session."""

    async def scenario(box: Box) -> str:
        os.mkdir(f"{box.top}/later")
        Path(f"{box.top}/later/token").write_text("secret")
        token = f"{box.top}/later/token"
        running = await (await box.session()).start(
            f"cat {token}; while [ -e {token} ]; do sleep 0.05; done; echo hidden"
        )
        await running.saw("secret")
        neighbours.note(f"{box.top}/home", [f"{box.top}/later"])
        return (await running.ended()).out

    assert in_box(scenario, namespace="trusted", parent="/var/tmp") == "secrethidden\n"


def test_the_data_of_engines_is_where_their_configuration_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        ".config/docker/daemon.json": json.dumps({"data-root": "/srv/docker"}),
        ".config/containers/storage.conf": (
            '[storage]\ngraphroot = "/srv/podman/"\n# graphroot = "/no"\nrunroot = "/run/x"\n'
        ),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "docker.pid").write_text(f"{os.getpid()}\n")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found = engine_roots.configured([str(tmp_path)])
    assert {"/srv/docker", "/srv/podman"} <= set(found) and not {"/no", "/run/x"} & set(found)
