"""Ways out of a session, and what must stay possible: one row each, tried for real in each kind of session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eos_agent import harden, machine_view, mounts, view
from eos_agent.harden import CAP_NUMBERS
from layerstack import linux

from . import attacks, escapes
from .box import Box, in_box
from .confined import OF_BOXES, POWERS, findings, try_all


def _nothing(*_args: object, **_options: object) -> None:
    """In the place of a protection that is left out."""


def _leave_dumpable() -> None:
    real = linux.prctl
    linux.prctl = lambda option, *args: 0 if (option, *args) == (linux.PR_SET_DUMPABLE, 0) else real(option, *args)


def _only_where_it_is_named() -> None:
    """Masks by mount point and path, as if no other mount could show the same."""
    real = machine_view._Composer._hidden_below  # pyright: ignore[reportPrivateUsage]

    def by_name(composer: Any, inside: str, here: mounts.Spot) -> list[str]:
        return real(composer, inside, here) if inside == "/" else []

    machine_view._Composer._hidden_below = by_name  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]


def _bind_instead() -> None:
    """The machine's root itself, read-only, in the place of an overlay of it."""
    machine_view._overlay = lambda lowerdirs, _attributes: mounts.clone(next(path for path in lowerdirs if path.startswith("/proc")))  # type: ignore[assignment]  # pyright: ignore[reportPrivateUsage]


PROTECTIONS: dict[str, tuple[str, Callable[[], object]]] = {
    # what is left out: (a row that must notice, how)
    "own /dev": ("devices of the machine", lambda: setattr(view, "_dev", _nothing)),
    "own /run": ("list /run", lambda: setattr(view, "_run", _nothing)),
    "read-only /proc/sys": ("core_pattern", lambda: setattr(view, "_PROC_READ_ONLY", ())),
    "hidden folders": ("read the agent's token", lambda: setattr(mounts.Looking, "spots", lambda *_: [])),
    "hidden on each mount": ("read ~/.ssh by a second mount of the home", _only_where_it_is_named),
    "overlays": ("connect to a socket outside the private folders", _bind_instead),
    "families": ("socket AF_VSOCK", lambda: setattr(harden, "_only_families", lambda _machine, **_options: [])),
    "Landlock": ("connect to an abstract socket of the machine", lambda: setattr(harden.Landlock, "restrict", _nothing)),
    "seccomp": ("unshare user", lambda: setattr(harden, "install_seccomp", _nothing)),
    "no packet sockets": ("read the packets of others", lambda: setattr(harden, "_only_families", lambda _machine, **_options: [])),
    "capset": ("chroot", lambda: setattr(linux, "capset", _nothing)),
    "not dumpable": ("trace pid 1", _leave_dumpable),
}


KINDS = [pytest.param(kind, marks=pytest.mark.needs(*powers)) for kind, powers in POWERS.items()]


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_of_the_table_comes_out_as_it_says(kind: str) -> None:
    assert escapes.wrong(kind, findings(kind).forked) == {}


@pytest.mark.needs("musl")
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_without_an_interpreter_gets_no_further_at_the_end_of_a_chain_of_shells_or_as_a_daemon(kind: str) -> None:
    found = findings(kind)
    plain = {name for name, row in escapes.rows_of(kind).items() if isinstance(row.attack, attacks.Plain)}
    assert len(plain & escapes.CALLS.keys()) >= 40 and len(plain & escapes.ESCAPES.keys()) >= 20
    for tried in (found.nested, found.daemon):
        assert tried.keys() == plain
        assert not {name: text for name, text in escapes.wrong(kind, tried).items() if name in plain}


@pytest.mark.needs("root", "overlay")
@pytest.mark.parametrize("protection", PROTECTIONS)
def test_each_protection_is_noticed_when_it_is_left_out(protection: str) -> None:
    row, tamper = PROTECTIONS[protection]
    assert row not in escapes.wrong("local-root", findings("local-root").forked)
    assert row in escapes.wrong("local-root", try_all("local-root", row, tamper).forked), f"without {protection}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_has_exactly_the_capabilities_of_the_list_and_cannot_gain_any(kind: str) -> None:
    async def scenario(box: Box) -> str:
        live = await box.session()
        return (await live.run("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; id -u")).out

    form, provider, _ = OF_BOXES[kind]
    words = in_box(scenario, form=form, provider=provider).split()
    status = dict(zip(words[:-1:2], words[1:-1:2], strict=True))
    full = sum(1 << n for n in CAP_NUMBERS.values())
    assert (int(status["CapInh:"], 16), int(status["CapAmb:"], 16)) == (0, 0)
    for name in ("CapPrm:", "CapEff:", "CapBnd:"):
        got = int(status[name], 16)
        assert got & ~full == 0 and got & sum(1 << CAP_NUMBERS[n] for n in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETFCAP"))
    assert (status["NoNewPrivs:"], status["Seccomp:"], words[-1]) == ("1", "2", "0")
