"""Publications of sessions that commit: the result is what git's own commands give on the same histories."""

from __future__ import annotations

from tests.layerstack.git_sessions import begin, commit, git, head, status, subjects
from tests.layerstack.store_fixture import Stack, on_a_stack

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
