"""The identity of git's configuration on the host: as git itself says it outside of a project."""

from __future__ import annotations

from pathlib import Path

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.workspace import git_program
from tests.git_trees import git


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without configuration, on a machine without one, and a project with an identity of its own."""
    home = tmp_path / "home"
    (home / "work/project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(home / "system"))
    for name in ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"):
        monkeypatch.delenv(name, raising=False)
    git(home / "work/project", "init", "-q")
    git(home / "work/project", "config", "user.name", "Project")
    git(home / "work/project", "config", "include.path", "/dev/zero")
    return home


def test_the_last_file_that_sets_a_key_counts_and_the_project_does_not(home: Path) -> None:
    project = str(home / "work/project")
    assert git_program.identity(project) == {}
    (home / "system").write_text("[user]\nname = System\nemail = system@x\n")
    assert git_program.identity(project) == {"name": "System", "email": "system@x"}
    (home / ".config/git").mkdir(parents=True)
    (home / ".config/git/config").write_text("[user]\nname = Config\nemail = config@x\n")
    (home / ".gitconfig").write_text('[user]\nname = "J\u00f6rg  Home"\n')
    assert git_program.identity(project) == {"name": "J\u00f6rg  Home", "email": "config@x"}
    (home / ".gitconfig").write_text(
        '[user]\nname = Home\n[includeIf "gitdir:~/work/"]\npath = work.inc\n'
        '[includeIf "gitdir:~/x/"]\npath = x\n'
    )
    (home / "work.inc").write_text("[user]\nemail = work@x\n")
    (home / "x").write_text("[user]\nemail = x@x\n")
    assert git_program.identity(project) == {"name": "Home", "email": "work@x"}
    assert git_program.identity(str(home)) == {"name": "Home", "email": "config@x"}


def test_a_broken_file_or_no_git_is_no_identity_and_no_failure(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "system").write_text("[user]\nname = System\nemail =\n")
    assert git_program.identity(str(home)) == {"name": "System"}
    (home / ".gitconfig").write_text("[user\n")
    assert git_program.identity(str(home)) == {}, "git commits nothing on the host either"
    (home / ".gitconfig").unlink()
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    assert git_program.identity(str(home)) == {}
    monkeypatch.setenv("PATH", str(home))
    assert git_program.identity(str(home)) == {}
    with pytest.raises(OperationError) as caught:
        git_program.run(str(home), "version")
    assert caught.value.details["reason"] == "git_missing"


def test_a_call_that_gives_no_answer_is_ended(home: Path) -> None:
    (home / ".gitconfig").write_text('[alias]\nwait = "!sleep 1000"\n')
    with pytest.raises(git_program.GitFailed, match=r"no answer within 0\.1 s"):
        git_program.run(str(home), "wait", timeout_s=0.1)
