"""Publications of sessions that commit: the result is what git's own commands give on the same histories."""

from __future__ import annotations

import os

import pytest

from layerstack.errors import PublishRejected, UnresolvedConflicts
from layerstack.model.resolution import Choice
from layerstack.text.merge import merge
from tests.layerstack.git_sessions import begin, commit, git, head, status, subjects
from tests.layerstack.store_fixture import Base, Stack, get, on_a_stack, put

FILES: Base = {"f": "f\n", "g": "g\n", "src/a.py": "a\n"}


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


@on_a_stack(FILES)
def test_in_mode_branch_commits_are_put_aside_and_files_are_merged(stack: Stack) -> None:
    begin(stack, mode="branch")
    a, b = stack.session(agent="ada"), stack.session(agent="bob")
    theirs, mine = commit(a, "f"), commit(b, "g")
    a.publish()
    (notice,) = (one for one in b.publish().notices if one.kind == "ref_renamed")
    assert (notice.path, notice.detail) == ("refs/heads/main", "refs/heads/eos/bob")
    with head(stack) as view:
        assert git(view, "rev-parse", "main", "eos/bob").split() == [theirs, mine]
        assert status(view) == [" M g"]
        assert git(view, "diff", "eos/bob", "--", "g") == ""


@on_a_stack(FILES)
def test_a_rebase_with_markers_leaves_the_heads_branch_with_both_sides_in_the_files(stack: Stack) -> None:
    begin(stack)
    a, b = stack.session(agent="ada"), stack.session(agent="bob")
    theirs = commit(a, f="A\n")
    mine = commit(b, f="B\n", g="g\nB\n")
    a.publish()
    b.umount()
    done = b.upper.rebase(Choice("markers"))
    b.mount()
    assert [(one.path, one.resolution) for one in done.resolved] == [("f", "markers")]
    assert git(b, "rev-parse", "main", "MERGE_HEAD").split() == [theirs, mine]
    assert status(b.view) == ["UU f", "M  g"]
    assert "A\n" in get(b.at("f")) and "B\n" in get(b.at("f"))
    put(b.at("f"), "A\nB\n")
    b.umount()
    with pytest.raises(UnresolvedConflicts, match=r"not committed: \.git/MERGE_HEAD"):
        b.upper.publish(owner="o", request_id="r")
    b.mount()
    git(b, "add", "f")
    git(b, "commit", "-q", "--no-edit")
    b.publish()
    with head(stack) as view:
        assert git(view, "rev-parse", "HEAD^1", "HEAD^2").split() == [theirs, mine]
        assert status(view) == [] and get(f"{view}/f") == "A\nB\n"
        assert git(view, "log", "-1", "--format=%s") == "Merge branch 'main' of bob"


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_a_rebase_that_takes_one_side_makes_the_merge_commit(side: str) -> None:
    @on_a_stack(FILES, namespaces=("trusted",))
    def body(stack: Stack) -> None:
        begin(stack)
        a, b = stack.session(agent="ada"), stack.session(agent="bob")
        theirs = commit(a, f="A\n")
        mine = commit(b, f="B\n", g="g\nB\n")
        a.publish()
        b.umount()
        b.upper.rebase(Choice(side))
        b.mount()
        b.publish()
        with head(stack) as view:
            assert git(view, "rev-parse", "HEAD^1", "HEAD^2").split() == [theirs, mine]
            kept = "f.theirs" if side == "ours" else "f.ours"
            assert status(view) == [f"?? {kept}"]
            assert get(f"{view}/f") == ("B\n" if side == "ours" else "A\n") and get(f"{view}/g") == "g\nB\n"

    body("trusted")


@on_a_stack(FILES)
def test_a_rebased_session_goes_on_with_its_commits_on_the_head(stack: Stack) -> None:
    begin(stack)
    a, b = stack.session(), stack.session()
    commit(a, "f")
    commit(b, "g")
    a.publish()
    b.umount()
    b.upper.rebase()
    b.mount()
    assert subjects(b.view) == ["by s2", "by s1", "first"] and status(b.view) == []
    commit(b, "g", message="more")
    b.publish()
    with head(stack) as view:
        assert subjects(view) == ["more", "by s2", "by s1", "first"] and status(view) == []


@on_a_stack(FILES)
def test_a_merge_under_way_is_named_with_the_commands_that_end_it(stack: Stack) -> None:
    begin(stack)
    a, b = stack.session(), stack.session()
    commit(a, "f")
    git(b, "checkout", "-q", "-b", "side")
    commit(b, f="side\n")
    git(b, "checkout", "-q", "main")
    commit(b, f="main\n")
    git(b, "merge", "side", fails=True)
    a.publish()
    assert not b.upper.preview().would_publish
    with pytest.raises(PublishRejected) as caught:
        b.publish()
    assert caught.value.reason == "git_operation_in_progress"
    (conflict,) = caught.value.conflicts
    assert conflict.hint is not None
    assert "git merge --continue" in conflict.hint and "git merge --abort" in conflict.hint


@on_a_stack(FILES)
def test_an_object_that_one_side_counts_on_stays_when_the_other_prunes_it(stack: Stack) -> None:
    begin(stack)
    session = stack.session()
    put(f"{stack.folder}/blob", "unreachable\n")
    git(session, "hash-object", "-w", f"{stack.folder}/blob")
    session.publish()
    a, b = stack.session(), stack.session()
    commit(a, h="unreachable\n")
    commit(b, "g")
    git(b, "gc", "-q", "--prune=now")
    a.publish()
    b.publish()
    with head(stack) as view:
        assert subjects(view) == ["by s3", "by s2", "first"] and status(view) == []


@on_a_stack(FILES)
def test_a_publication_says_what_it_was_not_built_on_without_files_of_git(stack: Stack) -> None:
    begin(stack)
    a, b, c = stack.session(), stack.session(), stack.session()
    commit(a, "f")
    commit(b, "g")
    git(c, "commit", "-q", "--allow-empty", "-m", "nothing that was made")
    a.publish()
    (notice,) = [one for one in b.publish().notices if one.kind == "built_on"]
    assert notice.unseen == ("f",)
    assert [one.kind for one in c.publish().notices] == []


@on_a_stack(FILES, namespaces=("trusted",))
def test_commits_of_both_in_one_linked_worktree_are_one_history(stack: Stack) -> None:
    begin(stack)
    first = stack.session()
    git(first, "worktree", "add", "-q", "--relative-paths", "wt", "-b", "w", fails=True)
    if not os.path.isdir(first.at("wt")):  # git before 2.48
        git(first, "worktree", "add", "-q", "wt", "-b", "w")
    put(first.at("wt/.git"), "gitdir: ../.git/worktrees/wt\n")
    put(first.at(".gitignore"), "wt\n")
    first.publish()
    a, b = stack.session(), stack.session()
    commit(a, "f", where="wt/")
    commit(b, "g", where="wt/")
    a.publish()
    b.publish()
    with head(stack) as view:
        assert subjects(view, "w") == ["by s3", "by s2", "first"] and subjects(view) == ["first"]
        assert status(f"{view}/wt") == []


@on_a_stack(FILES)
def test_an_uncommitted_edit_of_the_base_that_ours_commits_and_theirs_discards(stack: Stack) -> None:
    begin(stack)
    edit = stack.session()
    put(edit.at("f"), "f\nedit\n")
    edit.publish()
    a, b = stack.session(), stack.session()
    git(a, "checkout", "-q", "--", "f")
    commit(a, "g")
    commit(b)
    a.publish()
    b.publish()
    with head(stack) as view:
        assert subjects(view) == ["by s3", "by s2", "first"] and status(view) == []
        assert get(f"{view}/f") == "f\nedit\n"


@on_a_stack({"d/a": "".join(f"{n}\n" for n in range(20)), "d/b": "b\n"})
def test_a_directory_that_theirs_renames_with_an_edit_of_ours_inside(stack: Stack) -> None:
    begin(stack)
    a, b = stack.session(), stack.session()
    os.mkdir(a.at("e"))  # an overlay of an ordinary user renames no directory
    git(a, "mv", "d/a", "d/b", "e")
    os.rmdir(a.at("d"))
    commit(a)
    commit(b, "d/a")
    a.publish()
    b.publish()
    with head(stack) as view:
        assert subjects(view) == ["by s2", "by s1", "first"] and status(view) == []
        assert sorted(git(view, "ls-files").split()) == ["e/a", "e/b"]
        assert get(f"{view}/e/a").endswith("19\nline of s2\n") and not os.path.exists(f"{view}/d")


@on_a_stack({".gitignore": "*.log\n", "kept.log": "".join(f"{n}\n" for n in range(20)), "f": "f\n"})
def test_a_tracked_file_that_gitignore_matches_is_merged_and_not_the_last_writers(stack: Stack) -> None:
    first = stack.session()
    git(first, "init", "-q", "-b", "main")
    git(first, "add", "-f", ".")
    git(first, "commit", "-q", "-m", "first")
    first.publish()
    a, b, c, d = (stack.session() for _ in range(4))
    text = get(a.at("kept.log"))
    commit(a, kept__log="A\n" + text)
    commit(b, kept__log=text + "B\n")
    commit(c, kept__log="C\n" + text)
    put(d.at("kept.log"), "D\n" + text)
    git(d, "commit", "-q", "--allow-empty", "-m", "d")
    a.publish()
    b.publish()
    assert c.rejected() == {"kept.log": "content"}
    assert d.rejected() == {"kept.log": "content"}
    with head(stack) as view:
        assert status(view) == [] and get(f"{view}/kept.log") == "A\n" + text + "B\n"


@on_a_stack(FILES)
def test_a_conflict_in_a_file_that_theirs_renamed_names_the_new_path(stack: Stack) -> None:
    begin(stack)
    first = stack.session()
    text = "".join(f"{n}\n" for n in range(20))
    commit(first, old=text)
    first.publish()
    a, b = stack.session(), stack.session()
    git(a, "mv", "old", "new")
    commit(a, new="A\n" + text)
    git(b, "rm", "-q", "old")
    commit(b)
    a.publish()
    (conflict,) = b.conflicts()
    assert (conflict.path, conflict.cls, conflict.ref) == ("new", "delete_modify", "refs/heads/main")


@on_a_stack(FILES)
def test_a_rollback_keeps_the_commits_that_it_takes_off_their_branch(stack: Stack) -> None:
    begin(stack)
    version = stack.store.head.version
    a = stack.session()
    tip = commit(a, "f")
    a.publish()
    stack.store.rollback(version, owner="person", request_id="r")
    stack.store.rollback(version, owner="person", request_id="again")
    with head(stack) as view:
        assert subjects(view) == ["first"] and status(view) == []
        assert git(view, "rev-parse", "refs/eos/kept/person") == tip


TWO_ALGORITHMS = {"base": "{\n}\n}\n}\n", "theirs": "{\n}\n{\n}\n}\n", "ours": "{\n}\n}\n"}
"""Texts that `layerstack.text.merge` and git merge to different results."""


@on_a_stack({"f": TWO_ALGORITHMS["base"]})
def test_texts_on_which_two_line_algorithms_differ_are_one_text_in_tree_and_commit(stack: Stack) -> None:
    begin(stack)
    a, b = stack.session(), stack.session()
    commit(a, f=TWO_ALGORITHMS["theirs"])
    commit(b, f=TWO_ALGORITHMS["ours"])
    a.publish()
    b.publish()
    plain = f"{stack.folder}/plain"
    os.mkdir(plain)
    git(plain, "init", "-q", "-b", "main")
    for branch, text in TWO_ALGORITHMS.items():
        if branch != "base":
            git(plain, "checkout", "-q", "-b", branch, "main")
        put(f"{plain}/f", text)
        git(plain, "add", "f")
        git(plain, "commit", "-q", "-m", branch)
    git(plain, "rebase", "-q", "theirs")
    wanted = git(plain, "show", "HEAD:f")
    files = [TWO_ALGORITHMS[name].encode() for name in ("base", "ours", "theirs")]
    assert (merge(*files)[0] or b"").decode() != f"{wanted}\n", "the texts tell the two apart"
    with head(stack) as view:
        assert git(view, "show", "HEAD:f") == wanted
        assert get(f"{view}/f") == f"{wanted}\n" and status(view) == []


STATUSES = [pytest.param(10), pytest.param(200, marks=pytest.mark.soak)]


@pytest.mark.parametrize("count", STATUSES)
@pytest.mark.needs("root", "overlay")
def test_many_looks_at_the_status_beside_publications_are_no_versions(count: int) -> None:
    @on_a_stack({f"f{n}": "f\n" for n in range(20)}, namespaces=("trusted",))
    def looks(stack: Stack) -> None:
        begin(stack)
        commits = 0
        for n in range(count):
            looking = stack.session()
            os.utime(looking.at(f"f{n % 20}"))
            git(looking, "status")
            if n % 5 == 0:
                committing = stack.session()
                commit(committing, f"f{n % 20}")
                committing.publish()
                commits += 1
            assert looking.publish().no_op
        with head(stack) as view:
            assert len(subjects(view)) == 1 + commits and status(view) == []
        assert stack.store.snapshot().version == 2 + commits

    looks("trusted")


@on_a_stack(FILES, namespaces=("user",))
def test_a_head_and_an_index_that_git_would_not_read_replace_none(stack: Stack) -> None:
    begin(stack)
    a, b, c = stack.session(), stack.session(), stack.session()
    commit(a, "f")
    put(b.at(".git/HEAD"), "ref: HEAD\n")
    put(b.at("g"), "of b\n")
    commit(c, "g")
    with open(c.at(".git/index"), "r+b") as file:
        file.truncate(1 << 32)
    a.publish()
    assert b.rejected() == {".git": "delete_modify"}
    assert c.rejected() == {".": "git_unsupported"}, "it is not read into memory"
    with head(stack) as view:
        assert subjects(view) == ["by s1", "first"] and status(view) == []


@on_a_stack(FILES)
def test_a_repository_that_its_session_damaged_is_published_as_it_is(stack: Stack) -> None:
    begin(stack)
    a, b = stack.session(), stack.session()
    put(a.at(".git/refs/heads/main"), "0123456789" * 4 + "\n")
    with open(a.at(".git/index"), "ab") as index:
        index.write(b"x")
    put(b.at("g"), "of b\n")
    b.publish()
    assert not a.publish().no_op
    shown = stack.shows()
    assert shown[".git/refs/heads/main"] == "0123456789" * 4 + "\n" and shown["g"] == "of b\n"
