"""What a person sees of two agents who build beside each other, and of an export to where the person has
built: from either provider.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.manager_fixture import Host
from tests.end_to_end.manager_place import Place
from tests.end_to_end.manager_place import place as place
from tests.end_to_end.repository_exports import Scenario
from tests.end_to_end.repository_exports import play as play

pytestmark = [pytest.mark.needs("overlay")]

PROJECT = {
    "util.h": "#define VER 1\n",
    "util.c": '#include "util.h"\nint util(void) { return VER; }\n',
    "main.c": (
        '#include <stdio.h>\nint util(void);\nint main(void) { printf("util=%d\\n", util()); return 0; }\n'
    ),
    "Makefile": (
        "app: main.o util.o\n\tcc -o $@ $^\nmain.o: main.c\n\tcc -c $<\nutil.o: util.c util.h\n\tcc -c $<\n"
    ),
    ".gitignore": "*.o\napp\nhand.conf\nout.conf\n",
    "hand.mk": "out.conf: hand.conf\n\tcat $< >$@\n",
    "hand.conf": "1\n",
}


@pytest.fixture
def project(place: Place) -> Place:
    """The workspace holds it, written a while ago."""
    old = time.time_ns() - 3600 * 10**9
    for name, text in PROJECT.items():
        Path(place.workspace, name).write_text(text)
        os.utime(Path(place.workspace, name), ns=(old, old))
    return place


def test_make_builds_what_others_changed_after_publications_rebases_and_exports(
    project: Place, play: Callable[[Scenario], Any]
) -> None:
    async def scenario(host: Host, sandbox: str) -> None:
        async def opened() -> str:
            return str((await host.ask(sandbox, "create_workspace_session"))["workspace_session_id"])

        async def within(session: str, cmd: str) -> str:
            return await host.run(sandbox, cmd, workspace_session_id=session)

        async def published(session: str, **how: Any) -> dict[str, Any]:
            done = await host.ask(sandbox, "publish_workspace_session", workspace_session_id=session, **how)
            assert not done["publish"]["no_op"], done
            return done

        a, b, c = [await opened() for _ in range(3)]
        await within(a, "sed -i 's/VER 1/VER 2/' util.h && touch -d '-20 seconds' util.h")
        written = await host.ask(
            sandbox, "file_write", path="hand.conf", content="2\n", workspace_session_id=a
        )
        assert written["bytes_written"] == 2, written
        await within(b, "echo '/* b */' >>main.c && make && make -f hand.mk")
        await within(c, "make app")
        await published(a)
        await published(b, keep_open=True)
        assert "util=2" in await within(b, "make >/dev/null && ./app")
        seen = await within(
            b, "ls -l --full-time hand.conf out.conf util.h; make -sf hand.mk && cat hand.conf out.conf"
        )
        assert seen.split()[-2:] == ["2", "2"], seen
        rebased = await host.ask(sandbox, "rebase_workspace_session", workspace_session_id=c)
        assert rebased["updated"] >= 1, rebased
        assert "util=2" in await within(c, "make >/dev/null && ./app")

        Path(project.workspace, "person.h").write_text("1\n")
        subprocess.run(["make", "-s", "-C", project.workspace], check=True, timeout=120)
        d = await opened()
        await within(d, "sed -i 's/VER 2/VER 3/' util.h && touch -d '-10 minutes' util.h")
        await published(d)
        where = {"sandbox_id": sandbox, "dest": project.workspace}
        done = await host.do("export_changes", **where, on_conflict="overwrite")
        assert done["files_written"] > 0
        subprocess.run(["make", "-s", "-C", project.workspace], check=True, timeout=120)
        assert (
            subprocess.run([f"{project.workspace}/app"], capture_output=True, text=True, timeout=60).stdout
            == "util=3\n"
        )
        time_of = os.stat(f"{project.workspace}/util.h").st_mtime_ns
        again = await host.do("export_changes", **where, on_conflict="keep")
        assert (
            os.stat(f"{project.workspace}/util.h").st_mtime_ns == time_of and again["files_written"] == 0
        ), again
        ahead = time_of + 3600 * 10**9  # a file of the same second would count as unchanged
        os.utime(f"{project.workspace}/util.h", ns=(ahead, ahead))
        kept = await host.do("export_changes", **where, times="keep", on_conflict="overwrite")
        assert kept["files_written"] > 0 and os.stat(f"{project.workspace}/util.h").st_mtime_ns < time_of

    play(scenario)
