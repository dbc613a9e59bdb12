"""What a git that was killed or left behind has half done: nobody is kept from committing by it, in either
provider.
"""

from __future__ import annotations

import re

import pytest

from tests.end_to_end.cli_user import Sandbox
from tests.end_to_end.places import DEBIAN, ORDINARY_IN_A_SOAK, ROOT, in_places

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]

TRIES = 200
GIT = "git -c user.name=x -c user.email=x@y"


@in_places(ROOT, ORDINARY_IN_A_SOAK, DEBIAN)
def test_a_commit_that_was_killed_in_its_editor_and_a_gc_in_the_background_leave_no_lock(
    sandbox: Sandbox,
) -> None:
    """Seen at commit 83e28fb: every later commit fails on `.git/index.lock`, every later gc on
    `.git/gc.log.lock`.
    """
    objects = (
        "for n in $(seq 2000); do printf 'blob\\nmark :%s\\ndata 5\\n%05d\\n' $n $n; done | git -c "
        "fastimport.unpackLimit=5000 fast-import --quiet"
    )
    made = sandbox.shell(f"git init -q -b main; git add .; {GIT} -c gc.auto=0 commit -qm first; {objects}")
    assert made["exit_code"] == 0, made
    session = sandbox.session()
    editing = f"echo more >> a.txt; GIT_EDITOR='echo > begun; sleep 60 #' {GIT} commit -a"
    words = ("--yield-time-ms", "0", "--workspace-session-id", session, editing)
    command = sandbox.do("exec_command", *words)["command_session_id"]
    for _ in range(TRIES):
        if sandbox.shell("test -e begun", session)["exit_code"] == 0:
            break
    sandbox.do("signal_command", "--command-session-id", command, "--signal", "KILL")
    sandbox.do("wait_command", "--command-session-id", command, "--timeout-ms", "60000")
    assert [
        row["path"] for row in sandbox.do("preview_publish", "--workspace-session-id", session)["dropped"]
    ] == [".git/index.lock"]
    published = sandbox.do("publish_workspace_session", "--workspace-session-id", session)["publish"]
    assert [row["path"] for row in published["dropped"]] == [".git/index.lock"]
    automatic = "-c gc.auto=10 -c maintenance.auto=true"
    detached = f"{automatic} -c gc.autoDetach=true -c maintenance.autoDetach=true"
    second = sandbox.shell(f"{GIT} {detached} commit -qam second")
    assert second["exit_code"] == 0 and second["publish"]["published"], second
    # The collector in the background has ended, or TERM ended it, or its packing process, half way.
    half_done = re.compile(r"\.git/(gc\.pid|.*\.lock|objects/(.*/)?\.?tmp_[^/]*)")
    left = [row["path"] for row in second["publish"].get("dropped", [])]
    assert all(half_done.fullmatch(path) for path in left), left
    look = (
        f"find .git -name '*.lock' -o -name gc.pid -o -name 'tmp_*'; git {automatic} gc --auto "
        ">/dev/null 2>&1; ls .git/objects/pack | grep -c 'pack$'; git log --format=%s"
    )
    assert sandbox.shell(look)["output"].split() == ["1", "second", "first"]
