"""Refs, logs, stashes, notes, configuration and the index that two sessions changed, published: each row
against git's own commands.
"""

from __future__ import annotations

from tests.layerstack.git_matrix import BASE, OURS, REBASE, THEIRS, GitRow, check_rows
from tests.layerstack.store_fixture import Stack, on_a_stack

ONE = "line f theirs; save theirs"
MINE = "line g ours; save ours"
HEAD_IS = 'test "$(git symbolic-ref HEAD)" = refs/heads/{}'
TOPIC = BASE + "git branch topic"
STASHES = BASE + "for n in 1 2; do line f $n; git stash push -q -m s$n; done"


def same(*names: str) -> str:
    """A command that fails unless each first name of a pair gives the commit of the second."""
    pairs = zip(names[::2], names[1::2], strict=True)
    return "; ".join(
        f'test "$(git rev-parse {name}^0)" = "$(git rev-parse {value})"' for name, value in pairs
    )


REFS = [
    GitRow(
        "tags_of_both",
        "git tag v1; git tag -a -m x v2; git tag theirs",
        f"{MINE}; git tag v1; git tag -a -m y v2; git tag mine",
        OURS,
        check=same("v1", "$B", "v1-bob", "$O", "v2", "$B", "v2-bob", "$O", "mine", "$O", "theirs", "$B"),
    ),
    GitRow(
        "deleted_by_ours_moved_by_theirs",
        "git checkout -q topic; line g t; save t; git checkout -q main",
        f"git branch -q -D topic; {MINE}",
        OURS,
        base=TOPIC,
        check='test "$(git log -1 --format=%s topic)" = t; git reflog show topic | grep -q t',
    ),
    GitRow(
        "deleted_by_theirs_moved_by_ours",
        "git branch -q -D topic",
        "git checkout -q topic; line g t; save t; git checkout -q main",
        THEIRS,
        base=TOPIC,
        check='test "$(git log -1 --format=%s topic)" = t; git reflog show topic | grep -q t',
    ),
    GitRow(
        "created_by_both",
        "git branch new HEAD~1; git branch alike",
        f"git branch alike; {MINE}; git branch new",
        OURS,
        check=same("new", "$B~1", "new-bob", "$O", "alike", "$B") + "; git reflog show new-bob",
    ),
    GitRow(
        "a_directory_beside_a_file",
        "git branch x/y; git branch p",
        f"{MINE}; git branch x; git branch p/q",
        OURS,
        check=same("x/y", "$B", "x-bob", "$O", "p", "$B", "p-bob/q", "$O"),
    ),
    GitRow(
        "a_directory_that_becomes_a_branch",
        "git branch other",
        "git branch -q -D d/one d/two; git branch d; git checkout -q d; line g d; save d",
        OURS,
        base=BASE + "git branch d/one; git branch d/two; git pack-refs --all",
        check=f"{HEAD_IS.format('d')}; ! git rev-parse -q --verify d/one; git reflog show heads/d",
    ),
    GitRow(
        "a_deleted_directory_of_branches",
        "git checkout -q d/two; line g t; save t; git checkout -q main; git branch d/three",
        f"git branch -q -D d/one d/two; {MINE}",
        OURS,
        base=BASE + "git branch d/one; git branch d/two",
        check="! git rev-parse -q d/one^0; git log -1 --format=%s d/two | grep -q t; git reflog d/three",
    ),
    GitRow(
        "a_directory_of_branches_made_again",
        "git checkout -q d/one; line g t; save t; git checkout -q main; git branch d/three",
        f"git branch -q -D d/one; {MINE}; git branch d/new",
        OURS,
        base=BASE + "git branch d/one",
        check=same("d/new", "$O") + "; git log -1 --format=%s d/one | grep -q t; git reflog d/three",
    ),
    GitRow(
        "a_branch_that_becomes_a_directory",
        "git branch other",
        f"git branch -q -D e; {MINE}; git branch e/y",
        OURS,
        base=BASE + "git branch e",
        check=same("e/y", "$O") + "; ! git rev-parse -q --verify refs/heads/e; git reflog e/y",
    ),
    GitRow(
        "a_branch_that_becomes_a_directory_and_moves",
        "git checkout -q e; line g t; save t; git checkout -q main",
        f"git branch -q -D e; {MINE}; git branch e/y",
        OURS,
        base=BASE + "git branch e",
        check=same("e-bob/y", "$O") + "; git log -1 --format=%s e | grep -q t; git reflog e",
    ),
    GitRow(
        "deletions_of_packed_refs",
        "git branch -q -D b; git pack-refs --all",
        f"git branch -q -D a; git tag -d va; {MINE}; git pack-refs --all",
        OURS,
        base=BASE + "for n in a b c; do git branch $n; git tag -a -m $n v$n; done; git pack-refs --all",
        check="test \"$(git branch --format='%(refname:short)' | tr '\\n' ' ')\" = 'c main '; "
        + "test \"$(git tag | tr '\\n' ' ')\" = 'vb vc '; "
        + same("vb", "$B"),
    ),
    GitRow(
        "renamed_by_ours",
        "git branch other",
        f"git branch -m main trunk; {MINE}",
        OURS,
        check=f"{HEAD_IS.format('trunk')}; ! git rev-parse -q --verify refs/heads/main; git rev-parse other",
    ),
    GitRow(
        "switched_by_ours",
        "git branch other",
        f"git checkout -q -b feature; {MINE}",
        OURS,
        check=f"{HEAD_IS.format('feature')}; {same('main', '$B')}",
    ),
    GitRow(
        "switched_by_theirs",
        "git checkout -q topic",
        "git tag here",
        THEIRS,
        base=TOPIC,
        check=HEAD_IS.format("topic"),
    ),
    GitRow(
        "detached_by_ours",
        "git branch other",
        "git checkout -q --detach HEAD~1",
        OURS,
        check="! git symbolic-ref -q HEAD",
    ),
    GitRow(
        "remote_branches",
        "git update-ref refs/remotes/origin/main HEAD~1; git update-ref refs/remotes/origin/t HEAD",
        "git update-ref refs/remotes/origin/main HEAD; git update-ref refs/remotes/origin/o HEAD",
        THEIRS,
        check=same("origin/main", "$B", "origin/t", "$B", "origin/o", "$B"),
    ),
    GitRow(
        "branches_that_only_one_moved",
        "git checkout -q a; line f a; save a; git checkout -q main; " + ONE,
        "git checkout -q b; line g b; save b; git checkout -q main; line d/x ours; save ours",
        REBASE,
        base=BASE + "git branch a; git branch b",
        check='test "$(git log -1 --format=%s a)$(git log -1 --format=%s b)" = ab',
    ),
    GitRow(
        "stashes",
        "git stash drop -q 'stash@{1}'; line f t; git stash push -q -m theirs; git branch other",
        "line g x; git stash push -q -m ours",
        THEIRS,
        base=STASHES,
        check="""test "$(git stash list --format=%gs | cut -c 10- | tr '\\n' ' ')" = 'ours theirs s2 '
        git stash show -p | grep -q '^+x'""",
    ),
    GitRow(
        "a_popped_stash",
        "git branch other; line g t; git stash push -q -m theirs",
        "git stash pop -q; git stash drop -q",
        THEIRS,
        base=STASHES,
        check='test "$(git stash list --format=%gs)" = "On main: theirs"',
        status=(" M f",),
    ),
    GitRow(
        "notes",
        "git notes add -m 'b theirs'; git notes add -m one HEAD~1",
        f"git notes add -m 'a ours'; git notes --ref mine add -m x; {MINE}",
        OURS,
        check="""test "$(git notes show $B | tr '\\n' ' ')" = 'a ours b theirs '; git notes show $B~1
        git notes --ref mine show $B""",
    ),
    GitRow(
        "configuration",
        "git config branch.a.remote x; git config core.eol lf; git config --add remote.o.fetch +t",
        f"git config branch.b.remote y; git config user.name Me; git config --add remote.o.fetch +o; {MINE}",
        OURS,
        base=BASE + "git config remote.o.fetch +b; git config remote.o.url u",
        check="""test "$(git config branch.a.remote) $(git config branch.b.remote)" = 'x y'
        test "$(git config core.eol) $(git config user.name)" = 'lf Me'
        test "$(git config --get-all remote.o.fetch | sort | tr '\\n' ' ')" = '+b +o +t '""",
    ),
    GitRow(
        "logs",
        ONE,
        MINE,
        REBASE,
        check="""test "$(git reflog show --format=%gs main | head -n 1)" = 'publish: rebase'
        test "$(git reflog show --format=%gs | grep -c -e 'commit: ours' -e 'commit: theirs')" = 2
        git rev-parse 'main@{0}'""",
    ),
    GitRow(
        "stages_of_both",
        "line d/x t; git add d/x",
        "line g o; git add g; line new n; git add -N new; git rm -q --cached many; line f c; ci -m c f",
        OURS,
        status=("M  d/x", "M  g", "D  many", " A new", "?? many"),
    ),
    GitRow(
        "flags_of_the_index",
        ONE,
        f"git update-index --skip-worktree d/x; {MINE}; git update-index --assume-unchanged many",
        REBASE,
        check="test \"$(git ls-files -v d/x many | tr '\\n' ' ')\" = 'S d/x h many '",
    ),
    GitRow(
        "versions_of_the_index",
        f"git update-index --split-index; {ONE}",
        f"git update-index --index-version 4; git update-index --untracked-cache; {MINE}",
        REBASE,
        check='test "$(head -c 8 .git/index | tail -c 1 | od -An -tu1 | tr -d " ")" = 2',
    ),
    GitRow(
        "a_status_beside_a_commit", ONE, "touch f g many; git status -s; line z z", THEIRS, status=("?? z",)
    ),
    GitRow(
        "collected_by_both",
        f"{ONE}; git reflog expire --expire=now --all; git gc -q --prune=now",
        f"{MINE}; git gc -q --prune=now; git commit-graph write; git multi-pack-index write",
        REBASE,
    ),
    GitRow(
        "left_by_a_killed_git",
        f"{ONE}; : > .git/refs/heads/x.lock; : > .git/objects/tmp_obj_1",
        f"{MINE}; : > .git/refs/tags/y.lock; : > .git/gc.pid; : > .git/objects/pack/tmp_pack_1",
        REBASE,
        check='test -z "$(find .git -name "*.lock" -o -name "tmp_*" -o -name gc.pid)"',
    ),
]


@on_a_stack({"x": "x\n"}, namespaces=("trusted",))
def test_the_tables_rows_are_what_git_makes_of_them(stack: Stack) -> None:
    check_rows(stack, REFS)
