"""Write docs/confinement.md: `python docs/make_confinement.py`, as root, on a machine with an engine, user
namespaces and musl-gcc.

It tries the table of tests/eos_agent/escapes.py in each kind of session, that of tests/end_to_end/guards.py
on sandboxes of each provider, and writes down what came out. A test compares names, columns and results with
the tables; others try it all again.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if __name__ == "__main__":
    sys.path[:0] = [ROOT, os.path.join(ROOT, "agent_image")]

from tests.end_to_end import guards  # noqa: E402
from tests.eos_agent import attacks, escapes  # noqa: E402
from tests.eos_agent.escapes import Row  # noqa: E402

PAGE = os.path.join(ROOT, "docs", "confinement.md")
NOT_TRIED = "–"
SECTIONS: dict[str, tuple[str, Mapping[str, Row]]] = {
    "Calls": ("System calls that a session is refused.", escapes.CALLS),
    "Ways out": (
        "Each is tried on the real thing: a store with layers, the agent's own token, socket and port, "
        "another session with a secret in its "
        "environment, files and servers, an abstract socket of the machine. `open` is by design, for the "
        "reason in the last column.",
        escapes.ESCAPES,
    ),
    "What must work": ("Confinement that breaks ordinary programs would be switched off.", escapes.ALLOWED),
}
HEAD = """\
# Confinement

<!-- made by docs/make_confinement.py from tests/eos_agent/escapes.py, tests/end_to_end/guards.py and the results: change those, not this page -->

The boundary is for **cooperating agents on one user's machine, not for hostile tenants**. It keeps the work of
one session out of another's, protects published layers, the agent and its token, and keeps the machine from
being changed by mistake or by a program that tries to. It consists of what one kernel offers (namespaces,
capabilities, seccomp, Landlock, masks; [architecture.md](architecture.md#the-security-boundary) has the use of
each), so a bug of that kernel reaches everything. The agent of a container has SYS_ADMIN: a process that takes
over the agent has that container. Locally, sessions can read every other file that the user of the gateway can
read, except for hidden keys.

Everything below was tried, in {kinds} kinds of session, and every run of the tests tries it again: {calls} calls,
{ways} ways out, {works} things that must work; and {guards} guards of sandboxes outside of sessions. The attacks
are [attacks.py](../tests/eos_agent/attacks.py), and those with a ✓ also [attacks.c](../tests/eos_agent/attacks.c),
a static program for images without an interpreter (tried in Debian and in busybox). They are started by a shell
of a shell, and again as a daemon that left its command: what holds for a command holds for its descendants. A
cell is the error that the call returned (which of several refusals comes first depends on the kernel and the
image; the table says which ones may); `{not_tried}`: not tried there.

`rootfs: read_only` of `create_workspace_session` gives a session of a container the strict columns: a read-only
root, its own /tmp, /run and /dev, and Landlock where the kernel has it. Local sessions always have that.

Local sessions see the machine's file systems through read-only overlays
([ADR 0038](adr/0038-the-machine-is-seen-through-overlays.md)). Hidden are this program's state and cache, those
of other gateways, the data of container engines, and in each home (for root's gateway: in every home) the
files that hold keys, tokens and histories; `eos doctor` prints the list of this machine, and
`manager.local_daemon.hidden_paths` adds to it. A path is hidden by its target: on each mount that shows it, below
a `rootfs:` too. Limits: a second hard link of a hidden file shows it under that other name; an overlay mount of
another program whose layers are in a hidden folder shows them; a file system that is mounted after the start of
the sandbox is not visible at all; a file system that cannot be a lower layer of an overlay (vfat, for example) is
bound as it is, and of its sockets those that the machine lists are hidden when a session is made.

A gateway that begins later, with another `EOS_STATE_DIR`, notes its directories in
`~/.local/state/eos/gateways`; open sessions lose sight of them before their next command begins, and at the
latest about a second after the note. During this second they can read them; a process keeps the files that it
has opened and its working directory, and a folder that contains the session's own workspace is not hidden from it
(the agent's log says `neighbours_uncovered`). To avoid this second, start the second gateway first, or name its
folder in `hidden_paths`.
"""  # noqa: E501


def cell(row: Row, kind: str, found: str) -> str:
    """What a reader sees: an errno; `works` or `open` for what succeeded."""
    if row.expects(kind) is None:
        return NOT_TRIED
    word = found.split(":")[0]
    return word if word != "ok" else "works" if row.expected == escapes.OK else "open"


def page(results: Mapping[str, Mapping[str, str]]) -> str:
    """The whole page, from kind of session, and provider, -> name of the row -> what came out."""
    return "\n".join(_lines(results)) + "\n"


def _prose(text: str) -> str:
    """A paragraph in lines of at most 110 characters; comments and headings as they are."""
    if text.startswith(("#", "<!--")):
        return text
    return textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False)


def _lines(results: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    counts = {
        "calls": len(escapes.CALLS),
        "ways": len(escapes.ESCAPES),
        "works": len(escapes.ALLOWED),
        "guards": len(guards.ROWS),
    }
    yield "\n\n".join(
        map(_prose, HEAD.format(kinds=len(escapes.KINDS), not_tried=NOT_TRIED, **counts).split("\n\n"))
    )
    for title, (said, rows) in SECTIONS.items():
        yield f"## {title}\n\n{_prose(said)}\n"
        yield f"| | ✓ | {' | '.join(escapes.KINDS.values())} | why |"
        yield f"|---|---|{'---|' * len(escapes.KINDS)}---|"
        for name, row in rows.items():
            cells = [cell(row, kind, results[kind].get(name, NOT_TRIED)) for kind in escapes.KINDS]
            mark = "✓" if isinstance(row.attack, attacks.Plain) else ""
            yield f"| {name} | {mark} | {' | '.join(cells)} | {row.why} |"
        yield ""
    yield "## Beside sessions\n\nWhat guards sandboxes of either provider, tried on two of one.\n"
    for group, said in guards.SAID.items():
        yield f"### {group}\n\n{_prose(said)}\n"
        yield f"| | {' | '.join(guards.PROVIDERS.values())} | why |"
        yield f"|---|{'---|' * len(guards.PROVIDERS)}---|"
        for name, guard in guards.ROWS.items():
            if guard.group == group:
                words = [
                    results[kind].get(name, NOT_TRIED) if kind in guard.providers else NOT_TRIED
                    for kind in guards.PROVIDERS
                ]
                yield f"| {name} | {' | '.join(words)} | {guard.why} |"
        yield ""


def tried() -> dict[str, dict[str, str]]:
    """Everything, tried here and now. Half a minute.

    Raises:
        SystemExit: something came out that the table does not allow.
    """
    import asyncio

    import docker

    from tests import images
    from tests.conftest import drop_dir, make_short_dir
    from tests.end_to_end import test_docker_confinement
    from tests.end_to_end.manager_fixture import hosting, records
    from tests.eos_agent import confined

    results: dict[str, dict[str, str]] = {
        kind: confined.findings(kind).forked for kind in escapes.KINDS if kind in confined.OF_BOXES
    }
    top = make_short_dir("eos-c-")
    os.environ.update(EOS_STATE_DIR=f"{top}/s", EOS_SHARED_BASE_CACHE=f"{top}/bases")
    os.mkdir(f"{top}/w")
    test_docker_confinement.carry(f"{top}/w")

    async def guarded(provider: str, image: str, yaml: str | None = None) -> dict[str, str]:
        async with hosting(
            f"{top}/{provider}", backend=provider, instance_id=f"guards-{os.getpid()}", yaml=yaml
        ) as host:
            return await guards.findings(host, provider, image, f"{top}/w")

    async def in_docker() -> dict[str, list[dict[str, str]]]:
        async with hosting(f"{top}/s", backend="docker", instance_id=f"confinement-{os.getpid()}") as host:
            image = images.ensure("debian")
            return await test_docker_confinement.findings(
                host, lambda: str(records(f"{top}/s")[0]["token"]), image, f"{top}/w", python=True
            )

    try:
        results |= {kind: tries[0] for kind, tries in asyncio.run(in_docker()).items()}
        with open(f"{top}/local.yml", "w") as file:
            file.write("manager:\n  local_daemon:\n    resource_profile: standard\n")
        for provider, where in (
            ("docker", {"image": images.ensure("debian")}),
            ("local", {"image": "host", "yaml": f"{top}/local.yml"}),
        ):
            guarding = asyncio.run(guarded(provider, **where))
            if bad := guards.wrong(provider, guarding):
                raise SystemExit(f"{provider}: {bad}")
            results[provider] = {**results.get(provider, {}), **guarding}
    finally:
        client = docker.from_env()
        for name in os.listdir(f"{top}/bases") if os.path.isdir(f"{top}/bases") else []:
            for volume in client.volumes.list(filters={"name": f"eos-shared-base-{name}"}):
                volume.remove(force=True)
        client.close()
        shutil.rmtree(f"{top}/w")
        drop_dir(top)
    for kind in escapes.KINDS:
        found = results[kind]
        if wrong := escapes.wrong(kind, found):
            raise SystemExit(f"{kind}: {wrong}")
    return results


def main() -> None:
    text = page(tried())
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
