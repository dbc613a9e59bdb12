"""Databases and repositories that two sessions changed, through the programs: a database of both is refused
whole, commits of both are published.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.end_to_end.cli_user import Sandbox
from tests.end_to_end.places import DEBIAN, ORDINARY_IN_A_SOAK, ROOT, in_places

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]

GIT = "git -c user.name=A -c user.email=a@x.invalid -c safe.directory='*'"
DIES = "printf 'update t set n = 7;\\n.shell kill -9 $PPID\\n' | sqlite3 app.db"
"""The program is gone before it can write its log back."""


def run(sandbox: Sandbox, cmd: str, session: str | None = None) -> str:
    done = sandbox.shell(cmd, session)
    assert done["exit_code"] == 0, done
    return str(done["output"])


def publish(sandbox: Sandbox, session: str) -> None:
    sandbox.do("publish_workspace_session", "--workspace-session-id", session)


def the_conflict(sandbox: Sandbox, session: str) -> dict[str, Any]:
    """The only one, as each way tells it that is open to a session."""
    conflicts = sandbox.do("preview_publish", "--workspace-session-id", session)["conflicts"]
    for operation in ("rebase_workspace_session", "publish_workspace_session"):
        error = sandbox.refused(operation, "--workspace-session-id", session)
        assert error["details"]["publish_rejection"]["conflicts"] == conflicts and len(conflicts) == 1
    assert conflicts[0]["class"] == "unit"
    return dict(conflicts[0])


@in_places(ROOT, ORDINARY_IN_A_SOAK, DEBIAN)
def test_a_database_is_never_torn_and_commits_of_both_sides_come_together(
    sandbox: Sandbox,
) -> None:
    run(sandbox, "sqlite3 app.db 'pragma journal_mode = wal; create table t (n); insert into t values (1)'")
    a, b = sandbox.session(), sandbox.session()
    run(
        sandbox,
        "sqlite3 app.db 'with recursive i(n) as (select 1 union all select n + 1 from i where n < 5000) "
        "insert into t select n from i'",
        a,
    )
    sandbox.shell(DIES, b)
    assert run(sandbox, "test -s app.db-wal && echo there", b) == "there"
    publish(sandbox, a)
    conflict = the_conflict(sandbox, b)
    assert (conflict["path"], conflict["unit"]["name"]) == ("app.db", "sqlite")
    assert [row["path"] for row in conflict["unit"]["members"]] == ["app.db", "app.db-wal"]
    assert run(sandbox, "sqlite3 app.db 'pragma integrity_check; select count(*) from t'") == "ok\n5001"
    assert run(sandbox, "sqlite3 app.db 'select n from t'", b) == "7", "b's own is still there"

    run(sandbox, f"{GIT} init -q -b main && {GIT} add a.txt d && {GIT} commit -q -m first")
    a, b = sandbox.session(), sandbox.session()
    run(sandbox, f"echo A > a.txt && {GIT} commit -q -a -m ours", a)
    run(sandbox, f"echo B > d/b.txt && {GIT} commit -q -a -m theirs", b)
    publish(sandbox, a)
    assert sandbox.do("preview_publish", "--workspace-session-id", b)["conflicts"] == []
    publish(sandbox, b)
    assert (
        run(
            sandbox,
            f"{GIT} fsck --full --no-progress && {GIT} status --porcelain -uno && {GIT} log --format=%s && "
            f"cat a.txt d/b.txt",
        )
        == "theirs\nours\nfirst\nA\nB"
    )
