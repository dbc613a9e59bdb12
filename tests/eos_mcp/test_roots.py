"""The directories that a workspace may be chosen from."""

from __future__ import annotations

from pathlib import Path

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.requests import roots


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("work/beta", "work/Alpha", "work/gamma/deep", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work/file").write_text("")
    (tmp_path / "work/again").symlink_to("beta")
    (tmp_path / "work/out").symlink_to(tmp_path / "other")
    return tmp_path


def test_without_a_path_the_roots_are_listed_by_their_full_names(tree: Path) -> None:
    work, other = str(tree / "work"), str(tree / "other")
    found = roots.list_directories(None, [work, other])
    assert found == {
        "path": None,
        "parent": None,
        "truncated": False,
        "directories": [{"name": other, "path": other}, {"name": work, "path": work}],
    }


def test_without_configured_roots_the_home_directory_is_offered(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tree))
    assert [entry["path"] for entry in roots.list_directories(None, None)["directories"]] == [str(tree)]


def test_directories_are_sorted_without_case_links_resolved_and_those_that_leave_dropped(tree: Path) -> None:
    found = roots.list_directories(str(tree / "work"), [str(tree / "work")])
    assert [entry["name"] for entry in found["directories"]] == ["Alpha", "beta", "gamma"]
    assert found["parent"] is None
    below = roots.list_directories(str(tree / "work/gamma"), [str(tree / "work")])
    assert below["parent"] == str(tree / "work")
    assert below["directories"] == [{"name": "deep", "path": str(tree / "work/gamma/deep")}]


def test_the_list_is_sorted_before_it_is_cut(tree: Path) -> None:
    found = roots.list_directories(str(tree / "work"), [str(tree)], limit=2)
    assert [entry["name"] for entry in found["directories"]] == ["Alpha", "beta"]
    assert found["truncated"] is True


@pytest.mark.parametrize("path", ["relative", "{}/nope", "{}/work/file", "/", "{}/work/../../.."])
def test_a_path_that_cannot_be_listed_is_an_invalid_request(tree: Path, path: str) -> None:
    with pytest.raises(OperationError) as caught:
        roots.list_directories(path.format(tree), [str(tree)])
    assert caught.value.kind == "invalid_request"
    assert caught.value.details["argument"] == "path"


def test_a_link_inside_the_roots_that_leaves_them_is_not_followed(tree: Path) -> None:
    with pytest.raises(OperationError, match="outside"):
        roots.list_directories(str(tree / "work/out"), [str(tree / "work")])


def test_a_workspace_is_confined_to_configured_roots_and_free_without_any(tree: Path) -> None:
    roots.check_root(str(tree / "other"), None)
    roots.check_root(str(tree / "work/beta"), [str(tree / "work")])
    for outside in (tree / "other", tree / "work/out", tree / "workshop"):
        with pytest.raises(OperationError, match="outside"):
            roots.check_root(str(outside), [str(tree / "work")])
