"""What would run by itself on the person's machine is refused, everyday work is only named, and what is there
already is neither.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.export.hygiene import HOME, RULES, Hygiene
from eos_mcp.export.hygiene_git import gitdir_is_plain, hooks_path, plain_git_config
from eos_mcp.export.left_out import UNSAFE
from eos_mcp.export.rules import ExportRules
from layerstack.export import pax
from tests.eos_mcp.export_runs import run
from tests.export_streams import directory, file, gone, hard_link, made_by_digests, symlink

PLAIN = (
    b"[core]\n\trepositoryformatversion = 0\n\tbare = false\n[user]\n\tname = a\n[remote "
    b'"origin"]\n\turl = https://x.org/y.git\n'
)
RULES_OF_A_PERSON = ExportRules("auto", "fail", False)


def export(dest: Path, *entries: tuple[pax.Header, bytes], **rules: object) -> tuple[list[str], list[str]]:
    """Paths that are named, and those that the export is refused for; a dry run says the same, and nothing is
    then written.
    """
    seen: dict[bytes, tuple[pax.Header, bytes]] = {}
    for header, data in entries:
        above = header.path
        while above := above.rpartition(b"/")[0]:
            seen.setdefault(above, directory(above))
        seen[header.path] = (header, data)
    stream = made_by_digests(*(seen[path] for path in sorted(seen)))
    chosen = RULES_OF_A_PERSON._replace(**rules)  # type: ignore[arg-type]
    foretold = run(stream, dest, rules=chosen, dry_run=True)
    unsafe = [row["path"] for row in foretold["unsafe"]]
    before = os.listdir(dest) if dest.exists() else None
    if unsafe and not chosen.allow_unsafe:
        with pytest.raises(OperationError) as caught:
            run(stream, dest, rules=chosen)
        assert (
            caught.value.details["reason"] == "unsafe_content"
            and caught.value.details["unsafe"] == foretold["unsafe"]
        )
        assert (os.listdir(dest) if dest.exists() else None) == before
    else:
        run(stream, dest, rules=chosen)
    return [row["path"] for row in foretold.get("hygiene", [])], unsafe


REFUSED = (
    file(b".git/hooks/post-checkout", b"#!/bin/sh\n", 0o755),
    file(b".git/config", PLAIN + b"\tfsmonitor = touch x\n[core]\n fsmonitor=x"),
    file(b".git/config.worktree", b"[include]\npath = x\n"),
    file(b"any/name.git/config", b'[filter "x"]\nclean = sh\n'),
    file(b"sub/.git", b"gitdir: ../evil\n"),
    file(b".git/commondir", b"../evil\n"),
    symlink(b".git", b"evil"),
    symlink(b".vscode", b"evil"),
    file(b"deep/sitecustomize.py"),
    file(b".envrc"),
    file(b".exrc"),
    file(b".vscode/tasks.json", b'{"runOptions": {"runOn": "folderOpen"}}'),
    file(b".vscode/tasks.json", b'{"runOptions": {"runOn": "folder\\u004fpen"}}'),
    file(b".claude/settings.json", b"{}"),
    file(b".mcp.json", b"{}"),
    file(b".ENVRC"),
    file(b"site/sitecustomize.pyc"),
    file(b"src/app.pyc"),
    file(b".helix/languages.toml"),
)
EVERYDAY = (
    file(b".github/workflows/x.yml"),
    file(b".gitattributes"),
    file(b".husky/pre-commit", b"", 0o755),
    file(b".vscode/tasks.json", b'{"tasks": []}'),
    file(b".vscode/settings.json", b"{}"),
    file(b".git/config", PLAIN),
    file(b".claude/commands/x.md"),
    file(b"package.json", b"{}"),
    file(b"conftest.py"),
    file(b"Makefile"),
    file(b".bashrc"),
    file(b".venv/lib/python3/site-packages/new.pth", b"import x\n"),
    file(b"__pycache__/a.cpython-311.pyc"),
    file(b".cargo/config.toml"),
    file(b"mise.toml"),
    file(b".run/app.run.xml"),
    file(b".idea/workspace.xml"),
    file(b".vscode/extensions.json", b"{}"),
    file(b".gemini/commands/x.toml"),
    file(b"sub/AGENTS.md"),
    file(b".venv/bin/python", b"", 0o755),
    file(b"node_modules/.bin/tsc", b"", 0o755),
    file(b"tool", b"\x7fELF", 0o755),
    file(b"lisp/init.elc"),
    file(b"bare.git/info/attributes"),
)


@pytest.mark.parametrize("entry", REFUSED, ids=lambda e: os.fsdecode(e[0].path))
def test_what_would_run_by_itself_is_refused_unless_that_is_allowed(
    tmp_path: Path, entry: tuple[pax.Header, bytes]
) -> None:
    path = os.fsdecode(entry[0].path)
    assert export(tmp_path / "d", entry)[1] == [path]
    assert export(tmp_path / "d", entry, allow_unsafe=True)[1] == [path]
    assert os.path.lexists(tmp_path / "d" / path)
    assert export(tmp_path / "d", entry, git="include")[1] == [], "what is there already"


@pytest.mark.parametrize("entry", EVERYDAY, ids=lambda e: os.fsdecode(e[0].path))
def test_everyday_work_is_named_and_written(tmp_path: Path, entry: tuple[pax.Header, bytes]) -> None:
    assert export(tmp_path / "d", entry) == ([os.fsdecode(entry[0].path)], [])
    assert (tmp_path / "d" / os.fsdecode(entry[0].path)).exists()


@pytest.mark.parametrize(
    "place",
    [
        "a linked worktree",
        "a submodule",
        "the person's own setting",
        "an included file",
        "a part of a repository",
    ],
)
def test_hooks_are_refused_wherever_git_says_that_it_runs_them_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    dest = top = tmp_path / "d"

    def git(where: Path, *words: str) -> None:
        who = ("-c", "user.name=p", "-c", "user.email=p@x.org", "-c", "protocol.file.allow=always")
        subprocess.run(["git", *who, "-C", str(where), *words], check=True, capture_output=True, timeout=60)

    top.mkdir()
    git(top, "init", "-q", "-b", "main")
    (top / "part").mkdir()
    (top / "part/f").write_text("f")
    git(top, "add", "-A")
    git(top, "commit", "-qm", "first")
    setting = ("config", "core.hooksPath", "tools/_")
    if place == "a linked worktree":
        dest = tmp_path / "other"
        git(top, "worktree", "add", "-q", str(dest))
        git(top, *setting)
    elif place == "a submodule":
        (tmp_path / "above").mkdir()
        git(tmp_path / "above", "init", "-q")
        git(tmp_path / "above", "submodule", "add", "-q", str(top), "d")
        dest = tmp_path / "above/d"
        git(dest, *setting)
    elif place == "the person's own setting":
        (tmp_path / ".gitconfig").write_text("[core]\n\thooksPath = tools/_\n")
    elif place == "an included file":
        (top / ".git/more").write_text("[core]\n\thooksPath = ~/d/tools\n")
        git(top, "config", "include.path", "more")
    else:
        dest = top / "part"
        git(top, "config", "core.hooksPath", "part/tools")
    assert export(dest, file(b"tools/pre-commit", b"", 0o755), file(b"x")) == (
        ["tools/pre-commit"],
        ["tools/pre-commit"],
    )
    assert export(dest, file(b"tools.txt"), file(b"part/tools/x")) == ([], [])


def test_what_runs_because_of_the_place_is_refused_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook where core.hooksPath points, a start-up file in a home directory, a .pth in an environment that
    is in use, a bare repository.
    """
    dest = tmp_path / "d"
    (dest / ".git").mkdir(parents=True)
    (dest / ".git/config").write_text("[core]\n\thooksPath = .husky/_\n")
    (dest / ".venv/site-packages").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(dest / "home"))
    assert export(dest, file(b".husky/pre-commit"))[1] == [".husky/pre-commit"]
    assert export(dest, file(b"home/.bashrc"), file(b"home/.ssh/authorized_keys"), file(b"home/p/.bashrc"))[
        1
    ] == [
        "home/.bashrc",
        "home/.ssh/authorized_keys",
    ]
    lines = {
        b"import x": True,
        b"\xef\xbb\xbfimport\tx": True,
        b"../src\n": False,
        b"a\rimport x": True,
        b"# import x": False,
    }
    for line, runs in lines.items():
        assert (
            export(dest, file(b".venv/site-packages/p.pth", line))[1] == [".venv/site-packages/p.pth"] * runs
        ), line
        (dest / ".venv/site-packages/p.pth").unlink(missing_ok=True)
    bare = (
        file(b"odd/HEAD", b"ref: refs/heads/main\n"),
        file(b"odd/config", b"[core]\nfsmonitor = x\n"),
        file(b"odd/hooks/post-update"),
    )
    assert export(dest, *bare)[1] == ["odd/config", "odd/hooks/post-update"]


def test_a_planted_byte_code_file_does_not_come_where_there_is_something_and_all_comes_into_nothing(
    tmp_path: Path,
) -> None:
    dest = tmp_path / "d"
    dest.mkdir()
    (dest / "app.py").write_text("print(1)\n")
    planted = (
        file(b"__pycache__/app.cpython-311.pyc", b"evil"),
        symlink(b"pkg/__pycache__", b"../elsewhere"),
    )
    result = run(
        made_by_digests(directory(b"__pycache__"), planted[0], directory(b"pkg"), planted[1]),
        dest,
        rules=RULES_OF_A_PERSON,
    )
    assert sorted(os.listdir(dest)) == ["app.py", "pkg"] and not os.listdir(dest / "pkg")
    assert result["left_out"]["count"] == 3 and result["left_out"]["paths"][0] == "__pycache__"


def test_byte_code_runs_by_itself_where_its_source_is_gone(tmp_path: Path) -> None:
    """N12: Python takes `app.pyc` where there is no `app.py` beside it, also when the session deleted
    that.
    """
    dest = tmp_path / "d"
    dest.mkdir()
    (dest / "app.py").write_text("print(1)\n")
    assert export(dest, file(b"app.pyc"))[1] == []
    assert export(dest, gone(b"app.py"), file(b"app.pyc", b"2"), on_conflict="overwrite")[1] == ["app.pyc"]
    assert export(dest, file(b"both.py"), file(b"both.pyc"))[1] == []
    assert export(dest, file(b"old.pyo"))[1] == ["old.pyo"]


def test_what_would_run_by_itself_can_be_left_out_and_is_named(tmp_path: Path) -> None:
    dest, content = tmp_path / "d", b"[core]\nfsmonitor = evil\n"
    delta = (
        file(b".envrc", b"evil"),
        directory(b".git"),
        file(b".git/config", content),
        directory(b".git/hooks"),
        file(b".git/hooks/pre-commit", b"evil", 0o755),
        symlink(b".vscode", b"elsewhere"),
        file(b"a", b"a"),
        hard_link(b"z", b".envrc"),
    )
    rules = RULES_OF_A_PERSON._replace(skip_unsafe=True)
    for dry_run in (True, False):
        result = run(made_by_digests(*delta), dest, rules=rules, dry_run=dry_run)
        assert result["left_out"]["paths"] == [".envrc", ".git/config", ".git/hooks/pre-commit", ".vscode"]
        assert result["left_out"]["why"] == [{"count": 4, "why": UNSAFE}] and not result.get("unsafe")
    assert (
        sorted(path.name for path in dest.rglob("*") if not path.is_dir()) == ["a", "z"]
        and (dest / "z").read_bytes() == b"evil"
    )
    (dest / ".envrc").write_text("mine")
    assert (
        run(made_by_digests(*delta), dest, rules=rules)["left_out"]["count"] >= 1
        and (dest / ".envrc").read_text() == "mine"
    )


def test_the_classes_are_counted_however_many_files_there_are(tmp_path: Path) -> None:
    programs = [file(b"bin/%03d" % n, b"#!/bin/sh\n", 0o755) for n in range(30)]
    result = run(
        made_by_digests(directory(b"bin"), *programs, file(b"su", b"", 0o4755)),
        tmp_path / "d",
        keep_setuid=True,
    )
    assert result["hygiene_classes"] == {"program": 30, "setuid": 1}
    assert len(result["hygiene"]) == 26 and result["hygiene_count"] == 31


def test_a_git_configuration_is_plain_only_when_all_of_it_is_understood() -> None:
    assert plain_git_config(PLAIN) and plain_git_config(b"")
    for text in (
        b"[core] fsmonitor = x",
        b"[core]\nfsmonitor",
        b"[core]\nbare = \\\nfalse",
        b'[url "ext::sh"]\ninsteadOf = x',
        b"[include]\npath=x",
        b'[remote "o"]\nurl = ext::sh -c x',
        b'[remote "o"]\nurl = -x',
        b"[core]\npager = x",
        b'[submodule "s"]\nupdate = !x',
        b"name = x",
        b"[alias]\nst = !x",
    ):
        assert not plain_git_config(text), text
    assert (
        gitdir_is_plain(b"gitdir: ../.git/modules/s\n")
        and not gitdir_is_plain(b"gitdir: /x/.git")
        and not gitdir_is_plain(b"gitdir: e")
    )
    assert (
        hooks_path(b'[core]\n\tHooksPath = ".husky"\n') == b".husky"
        and hooks_path(b"[x]\nhookspath = y") == b""
    )


def test_the_page_shows_each_rule() -> None:
    page = (Path(__file__).resolve().parent.parent.parent / "docs" / "export.md").read_text()
    for rule in RULES:
        shown = rule.treatment + (f", unless {rule.unless}" if rule.unless else "")
        assert f"| {rule.files.replace('*', chr(92) + '*')} | `{rule.why}` | {shown} |" in page, rule.files
    assert Hygiene().to_json() == {} and HOME in page
