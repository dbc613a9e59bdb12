"""Publications of sessions that commit: the result is what git's own commands give on the same histories."""

from __future__ import annotations

import os

from tests.layerstack.git_sessions import begin, commit, git, head, status, subjects
from tests.layerstack.store_fixture import Stack, on_a_stack, put

FILES = {"f": "f\n", "g": "g\n", "src/a.py": "a\n"}


@on_a_stack(FILES)
def test_commits_of_two_sessions_on_one_branch_are_one_history(stack: Stack) -> None:
    begin(stack)
    a, b = stack.session(agent="ada"), stack.session(agent="bob")
    first = commit(a, "f")
    second = commit(b, "g")
    a.publish()
    published = b.publish()
    with head(stack) as view:
        assert subjects(view) == ["by s2", "by s1", "first"]
        assert git(view, "rev-parse", "HEAD~1") == first
        assert published.rewritten == {second: git(view, "rev-parse", "HEAD")}
        assert status(view) == []
        assert git(view, "rev-parse", "HEAD@{1}") == first


@on_a_stack(FILES)
def test_status_alone_is_no_change(stack: Stack) -> None:
    begin(stack)
    a, b, c = stack.session(), stack.session(), stack.session()
    for session in (a, b):
        os.utime(session.at("f"))
        git(session, "status")
    assert a.publish().no_op, "the head did not move"
    commit(c, "g")
    c.publish()
    preview = b.upper.preview()
    assert preview.no_op and not preview.conflicts
    assert b.publish().no_op
    with head(stack) as view:
        assert status(view) == [] and subjects(view) == ["by s3", "first"]


@on_a_stack(FILES)
def test_uncommitted_work_stays_uncommitted_on_what_the_head_committed(stack: Stack) -> None:
    begin(stack)
    a, b, c = stack.session(), stack.session(), stack.session()
    commit(a, "f")
    put(b.at("g"), "g\nuncommitted\n")
    put(b.at("untracked"), "u\n")
    put(b.at("staged"), "s\n")
    git(b, "add", "staged")
    put(c.at("src/a.py"), "a\nof c\n")
    a.publish()
    b.publish()
    c.publish()
    with head(stack) as view:
        assert status(view) == [" M g", " M src/a.py", "A  staged", "?? untracked"]
        assert subjects(view) == ["by s1", "first"]


@on_a_stack(FILES)
def test_edits_of_one_file_that_merge_are_replayed_and_those_that_do_not_are_one_conflict(
    stack: Stack,
) -> None:
    begin(stack)
    a, b, c = stack.session(agent="ada"), stack.session(agent="bob"), stack.session(agent="cyn")
    lines = [f"{n}\n" for n in range(20)]
    first = stack.session()
    commit(first, many="".join(lines))
    first.publish()
    a, b, c = stack.session(agent="ada"), stack.session(agent="bob"), stack.session(agent="cyn")
    theirs = commit(a, many="".join(["A\n", *lines[1:]]))
    commit(b, many="".join([*lines[:-1], "B\n"]))
    mine = commit(c, many="".join(["C\n", *lines[1:]]))
    a.publish()
    b.publish()
    with head(stack) as view:
        assert status(view) == []
        assert git(view, "show", "HEAD:many") == "".join(["A\n", *lines[1:-1], "B"])
        newest = git(view, "rev-parse", "HEAD")
    (conflict,) = c.conflicts()
    assert (conflict.path, conflict.cls, conflict.ref) == ("many", "content", "refs/heads/main")
    assert conflict.commits is not None
    assert conflict.commits.ours == (mine,) and conflict.commits.theirs == (theirs, newest)
    assert conflict.hunks[0].texts == ("0\n", "C\n", "A\n")


@on_a_stack(FILES)
def test_a_merge_commit_is_merged_and_not_replayed(stack: Stack) -> None:
    begin(stack)
    a, b = stack.session(), stack.session()
    commit(a, "f")
    git(b, "checkout", "-q", "-b", "side")
    commit(b, "g", message="on side")
    git(b, "checkout", "-q", "main")
    commit(b, "new", message="on main")
    git(b, "merge", "-q", "--no-ff", "-m", "merged side", "side")
    tip = git(b, "rev-parse", "HEAD")
    a.publish()
    b.publish()
    with head(stack) as view:
        assert git(view, "rev-parse", "HEAD^2") == tip
        assert git(view, "log", "-1", "--format=%an %ae") == "s2 agent@eos.invalid"
        assert status(view) == []
        assert {"by s1", "on side", "on main"} <= set(subjects(view))


@on_a_stack(FILES)
def test_an_amended_published_commit_is_kept(stack: Stack) -> None:
    begin(stack)
    a = stack.session(agent="ada")
    old = commit(a, "f", message="draft of it")
    a.publish()
    b = stack.session(agent="bob")
    put(b.at("f"), "better\n")
    git(b, "commit", "-q", "-a", "--amend", "-m", "done")
    git(b, "reflog", "expire", "--expire=now", "--all")
    git(b, "gc", "-q", "--prune=now")
    published = b.publish()
    assert published.kept_refs == ("refs/eos/kept/bob",)
    with head(stack) as view:
        assert subjects(view) == ["done", "first"] and status(view) == []
        assert git(view, "rev-parse", "refs/eos/kept/bob") == old
        assert subjects(view, "refs/eos/kept/bob") == ["draft of it", "first"]
