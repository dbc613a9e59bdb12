"""Trees deeper than PATH_MAX and than Python recurses, as a command makes them that goes down by `cd`."""

from __future__ import annotations

import os

import pytest

from layerstack import durable
from tests import children


def go_down(folder: str, name: str, depth: int) -> None:
    """`depth` directories in one another below `folder`, with a file in the last; the process is left down there."""
    os.chdir(folder)
    for _ in range(depth):
        os.mkdir(name)
        os.chdir(name)
    with open("bottom", "w") as file:
        file.write("x")


@pytest.mark.parametrize("form", [pytest.param(None, id="whoever"), pytest.param("uid", id="ordinary", marks=pytest.mark.needs("uid"))])
@pytest.mark.parametrize(("name", "depth"), [("n" * 200, 30), ("d", 1900)], ids=["long-names", "many-levels"])
def test_a_tree_of_any_depth_is_removed_and_nothing_beside_it(short_dir: str, form: str | None, name: str, depth: int) -> None:
    os.chmod(short_dir, 0o777)

    def in_child() -> list[str]:
        for folder in ("gone", "beside"):
            os.mkdir(f"{short_dir}/{folder}")
        os.symlink(f"{short_dir}/beside", f"{short_dir}/gone/link")
        go_down(f"{short_dir}/gone", name, depth)
        os.chmod(".", 0)
        os.chdir("/")
        durable.remove_tree(f"{short_dir}/gone")
        return os.listdir(short_dir)

    assert children.call(form, in_child) == ["beside"]
