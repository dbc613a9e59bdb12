"""A version's chain is made from that of the version before: each goes on showing its own layers."""

from __future__ import annotations

from pathlib import Path

from layerstack.kernel.xattrs import USER
from layerstack.layers.chain import Chain
from layerstack.layers.index import Index, Layer, PathIndex, base_layer, record
from layerstack.model.manifest import LayerId
from layerstack.tree.disk import DiskTree
from layerstack.tree.scanned import SeenTree
from layerstack.tree.state import DIRECTORY, FILE


def layer(root: Path, path_index: PathIndex, name: str, version: int) -> Layer:
    """One that holds the file `f`."""
    tree = root / name
    tree.mkdir()
    (tree / "f").write_text(name)
    index: Index = {"": record(DIRECTORY, quiet=True), "f": record(FILE)}
    made = Layer(LayerId(name), DiskTree(str(tree), USER), version, index)
    path_index.add(made)
    return made


def shown(chain: Chain) -> str | None:
    state = chain.find("f")
    return None if state is None else state.data().decode()


def test_a_chain_does_not_see_the_layers_that_were_put_above_it(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    path_index = PathIndex()
    bottom = Chain([base_layer(DiskTree(str(tmp_path / "base"), USER))], path_index, USER)
    first = bottom.above(layer(tmp_path, path_index, "first", 2))
    second = first.above(layer(tmp_path, path_index, "second", 3))
    other = first.above(layer(tmp_path, path_index, "other", 3))
    assert [shown(chain) for chain in (bottom, first, second, other)] == [None, "first", "second", "other"]
    assert [len(chain.directories("")) for chain in (bottom, first, second, other)] == [1, 2, 3, 3]
    assert (second.ids[:2], other.ids[:2]) == (("second", "first"), ("other", "first"))
    whole = Chain(second.published, path_index, USER)
    assert (whole.ids, whole.layers, shown(whole)) == (second.ids, second.layers, "second")


def test_a_tree_that_remembers_looks_again_after_each_change_of_its_own(tmp_path: Path) -> None:
    for path in ("d/e", "d/g"):
        (tmp_path / "tree" / path).mkdir(parents=True)
    for path in ("d/one", "d/two", "d/e/three"):
        (tmp_path / "tree" / path).write_text(path)
    (tmp_path / "aside").mkdir()
    root, aside = str(tmp_path / "tree"), str(tmp_path / "aside")
    steps: list[str] = []
    seen, plain = SeenTree(root, USER, aside=aside, step=steps.append), DiskTree(root, USER)

    def same() -> None:
        for path in ("", "d", "d/e", "d/g"):
            try:
                there = plain.scan(path)
            except FileNotFoundError:
                continue
            assert seen.scan(path) == there
            assert (seen.state(path).times, seen.state(path).meta) == (
                plain.state(path).times,
                plain.state(path).meta,
            )
            assert (seen.opaque(path), seen.xattr_whiteouts(path)) == (
                plain.opaque(path),
                plain.xattr_whiteouts(path),
            )
            for name, kind in there:
                child = f"{path}/{name}".strip("/")
                if kind == FILE:
                    assert seen.state(child).data() == plain.state(child).data()

    one = plain.state("d/one")
    for change in (
        lambda: seen.unlink("d/two"),
        lambda: seen.put("d/four", one),
        lambda: seen.replace("d/e/three", one),
        lambda: seen.set_opaque("d"),
        lambda: seen.clear_opaque("d"),
        lambda: seen.set_times("d", (5, 7)),
        lambda: seen.set_attributes("d", plain.state("d/e")),
        lambda: seen.rmdir("d/g"),
        lambda: seen.remove("d/e"),
    ):
        same()
        change()
        same()
    assert steps == [
        f"seal.{name}"
        for name in ("unlink", "put_f", "replace", "opaque", "unopaque", "attributes", "rmdir", "remove")
    ]
