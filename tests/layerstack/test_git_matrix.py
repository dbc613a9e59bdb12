"""The rows of the merge of repositories, each against what git's own commands give on the same history."""

from __future__ import annotations

import pytest

from tests import git_versions
from tests.layerstack.git_matrix import (
    BASE,
    MERGE,
    OURS,
    REBASE,
    THEIRS,
    THEIRS_ONTO_OURS,
    GitRow,
    check_rows,
)
from tests.layerstack.store_fixture import Stack, on_a_stack

ONE = "line f theirs; save theirs"
"""One commit of the other session."""
HEAD_IS_MAIN = 'test "$(git symbolic-ref HEAD)" = refs/heads/main'
KEEPS = "git for-each-ref --contains {} refs/eos/kept | grep -q ."

BRANCHES = [
    GitRow("both_commit", ONE, "line g ours; save ours", REBASE, check=HEAD_IS_MAIN),
    GitRow(
        "only_ours",
        "git branch other",
        "line g 1; save one; line g 2; save two",
        OURS,
        check="git rev-parse other",
    ),
    GitRow("only_theirs", ONE, "git branch other", THEIRS, check="git rev-parse other"),
    GitRow(
        "several_with_a_branch_and_a_tag",
        ONE,
        "line g 1; save one; git branch middle; line g 2; save two; git tag v1; line g 3; save three",
        REBASE,
        check='test "$(git rev-parse middle)" = "$(git rev-parse HEAD~2)"; git rev-parse v1',
    ),
    GitRow(
        "empty_and_emptied_commits",
        "replace many 03 changed; save 'the same'",
        "ci --allow-empty -m nothing; replace many 03 changed; save 'the same too'; line g x; save more",
        REBASE,
    ),
    GitRow(
        "edits_of_one_file",
        "replace many 02 theirs; save theirs",
        "replace many 19 ours; save ours; replace many 10 again; save again",
        REBASE,
    ),
    GitRow(
        "message_author_and_encoding",
        ONE,
        """line g 1; git add -A
        GIT_AUTHOR_NAME='Zoë' GIT_AUTHOR_DATE='1600000000 -0700' git -c i18n.commitEncoding=ISO-8859-1 \
            commit -q -m "$(printf 'caf\\351')"
        line g 2; git add -A; printf 'subject\\n\\n\\nbody  \\n# no comment\\n\\n\\n' > .git/M
        ci --cleanup=verbatim -F .git/M; rm .git/M""",
        REBASE,
        check="git log -3 --format=%e | grep -q ISO-8859-1",
    ),
    GitRow(
        "a_merge_commit",
        ONE,
        """git checkout -q -b side; line g side; save side; git checkout -q main; line d/x main; save main
        t=$((t+60)); GIT_AUTHOR_DATE="$t +0130" GIT_COMMITTER_DATE="$t +0130" git merge -q -m merged side""",
        MERGE,
    ),
    GitRow("a_pushed_commit", ONE, "line g 1; save one; git update-ref refs/remotes/origin/main HEAD", MERGE),
    GitRow(
        "a_step_that_does_not_apply",
        "replace many 05 theirs; save theirs",
        "replace many 05 ours; save one; replace many ours 05; save back; line g x; save two",
        MERGE,
    ),
    GitRow(
        "detached",
        ONE,
        "line g ours; save ours",
        REBASE,
        base=BASE + "git checkout -q --detach",
        check="! git symbolic-ref -q HEAD",
    ),
    GitRow(
        "theirs_amended",
        "line f better; git add -A; ci --amend -m 'second, better'",
        "line g ours; save ours",
        REBASE,
    ),
    GitRow(
        "ours_amended",
        "line g theirs; save theirs",
        "line f better; git add -A; ci --amend -m 'second, better'",
        THEIRS_ONTO_OURS,
        check=KEEPS.format("$H"),
    ),
    GitRow(
        "ours_reset",
        "line g theirs; save theirs",
        "git reset -q --hard HEAD~1; line d/x other; save other",
        THEIRS_ONTO_OURS,
        check=f"{KEEPS.format('$H')}; {KEEPS.format('$B')}",
    ),
    GitRow(
        "unborn",
        "line a theirs; save theirs",
        "line b ours; save ours",
        "git checkout -q --detach $O; git rebase -q --root --onto $H",
        base="git init -q; git symbolic-ref HEAD refs/heads/main; line x x",
    ),
    GitRow(
        "sha256",
        ONE,
        "line g 1; save one; line g 2; save two",
        REBASE,
        base=BASE.replace("init -q", "init -q --object-format=sha256"),
    ),
    GitRow(
        "packed_by_theirs",
        ONE + "; git gc -q --prune=now; git pack-refs --all",
        "line g ours; save ours; git branch x",
        REBASE,
        check='test "$(git rev-parse x)"',
    ),
    GitRow(
        "packed_by_ours", ONE, "line g ours; save ours; git repack -adq; git pack-refs --all --prune", REBASE
    ),
    GitRow(
        "modes_and_links",
        "chmod +x f; rm g; ln -s f g; save theirs",
        "line f ours; mkdir -p e; ln -s ../d/x e/l; save ours; chmod +x many; save mode",
        REBASE,
    ),
    GitRow(
        "a_renamed_directory",
        "git mv d moved; line many x; save theirs",
        "line d/x ours; line d/new ours; save ours",
        REBASE,
    ),
    GitRow("a_deleted_file", "git rm -q g; save theirs", "line f ours; git mv many lots; save ours", REBASE),
    GitRow(
        "union_and_line_ends",
        "line log theirs; replace w 1. one; save theirs",
        "line log ours; line w 3; save ours",
        REBASE,
        base=BASE + "printf 'log merge=union\\nw text eol=crlf\\n' > .gitattributes; line log 0\n"
        "for n in 1 a b c d 2; do line w $n; done; save attributes; rm w; git checkout -q -- w",
        check="printf 'one\\r\\n' | cmp -n 5 - w",
    ),
    GitRow(
        "a_new_branch_of_ours",
        ONE,
        "git checkout -q -b topic; line g ours; save ours",
        THEIRS,
        check=f'{HEAD_IS_MAIN}; test "$(git rev-parse topic)" = "$O"',
    ),
    GitRow(
        "uncommitted_on_both",
        "line f theirs; save theirs; line many 21",
        "line g ours; save ours; line d/x dirty; line new untracked; line s staged; git add s",
        REBASE,
        status=(" M d/x", " M many", "A  s", "?? new"),
    ),
]


@on_a_stack({"x": "x\n"}, namespaces=("trusted",))
def test_branches_that_both_moved_are_what_git_makes_of_them(stack: Stack) -> None:
    check_rows(stack, BRANCHES)


MERGES = [
    GitRow("both_commit", ONE, "line g ours; save ours", MERGE),
    GitRow(
        "edits_of_one_file", "replace many 02 t; save t", "replace many 19 o; save o; line g x; save x", MERGE
    ),
    GitRow("only_ours", "git branch other", "line g 1; save one; line g 2; save two", OURS),
]


@on_a_stack({"x": "x\n"}, namespaces=("user",))
def test_branches_are_merged_where_that_is_configured(stack: Stack) -> None:
    check_rows(stack, MERGES, mode="merge")


@pytest.mark.soak
@pytest.mark.parametrize("which", ["older", "newest"])
def test_repositories_of_other_versions_of_git_are_what_git_makes_of_them(which: str) -> None:
    version = git_versions.older() if which == "older" else git_versions.newest()
    rows = [row for row in BRANCHES if which == "newest" or "object-format" not in row.base]

    @on_a_stack({"x": "x\n"})
    def body(stack: Stack) -> None:
        check_rows(stack, rows, environments=(version.environment,) * 3)

    body("trusted")
