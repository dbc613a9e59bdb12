"""Check the trees of a store against the data recorded about them: layers, drafts and, on request, the
base.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any

from layerstack.errors import StoreCorrupt
from layerstack.fsck import base_hash, one_tree
from layerstack.fsck.parts import CheckContext, Damage
from layerstack.history import blame_file
from layerstack.kernel import records
from layerstack.layers.index_file import PLAIN_FORMAT
from layerstack.layers.version_files import VersionRecord
from layerstack.model.manifest import BASE_ID, squashed_id
from layerstack.publish.commit import owner_of

PER_TREE = 100
"""Most damage that is reported about one tree; one more line counts the rest."""


def layer(look: CheckContext, layer_id: str) -> Iterator[Damage | None]:
    """Check one layer with all its files; gives None after each entry."""
    folder, stem = f"layers/{layer_id}", f".layer-metadata/{layer_id}"
    if os.path.islink(f"{look.root}/{folder}"):
        yield Damage(folder, "is a symlink", "its kind")
        return
    if not os.path.isdir(f"{look.root}/{folder}"):
        return  # reported where it is named
    if not _is_named(look, layer_id):
        try:
            home = owner_of(look.root, layer_id)
        except (StoreCorrupt, OSError, KeyError):
            home = ""  # an open keeps it too: it may be the only copy of the work
        if home is None:
            look.note("left_over", folder, "no manifest and no draft names it; the next open removes it")
            return  # an interrupted removal leaves a part of it
        look.note("left_over", folder, "no manifest and no draft names it; the next open gives it back to its session, or keeps it")
    about: dict[str, Any] | None = None
    index: str | None = None
    try:
        about = look.document(f"{stem}.json")
        yield from _identity(look, layer_id, about, stem)
    except (StoreCorrupt, OSError) as error:
        yield from look.corrupt(error, f"{stem}.json")
    try:
        checksum = one_tree.check_index(f"{look.root}/{stem}.index")
        if about is not None and about.get("index_sha256", checksum) != checksum:
            yield Damage(f"{stem}.index", "is intact, but the index of another layer", "its checksum in the layer's metadata")
        else:
            index = f"{look.root}/{stem}.index"
    except FileNotFoundError:
        yield Damage(f"{stem}.index", "missing", "its name")
    except (StoreCorrupt, OSError) as error:
        yield from look.corrupt(error, f"{stem}.index")
    digest = None if about is None else str(about.get("digest"))
    yield from _tree(look, folder, index, digest)
    look.counts = look.counts._replace(layers=look.counts.layers + 1)


def _identity(look: CheckContext, layer_id: str, about: dict[str, Any], stem: str) -> Iterator[Damage]:
    """Check that the small files belong to that layer."""
    try:
        squashed = layer_id.startswith("S")
        mark = squashed_id(0, about["digest"], about["replaced"])[-8:] if squashed else str(about["digest"])[:8]
    except (KeyError, TypeError) as error:
        yield Damage(f"{stem}.json", f"lacks {error}", "its content")
        return
    if layer_id[-8:] != mark:
        yield Damage(f"{stem}.json", "is the metadata of another layer", "the digest in the layer's name")
    if squashed:
        yield from _blame(look, f"{stem}.blame", about)
        return
    try:
        data = records.content(f"{look.root}/{stem}.digest")
    except FileNotFoundError:
        yield Damage(f"{stem}.digest", "missing", "its name")
        return
    if data != str(about["digest"]).encode() + b"\n":
        yield Damage(f"{stem}.digest", "is not the layer's digest", "the layer's metadata")


def _blame(look: CheckContext, name: str, about: dict[str, Any]) -> Iterator[Damage]:
    """Check the file of owners of a squashed layer."""
    path = f"{look.root}/{name}"
    if not os.path.lexists(path):
        yield Damage(name, "missing", "its name")
        return
    blame_file.load(path)
    checksum = blame_file.checksum(path)
    if about.get("blame_sha256", checksum) != checksum:
        yield Damage(name, "is intact, but belongs to another layer", "its checksum in the layer's metadata")


def _is_named(look: CheckContext, layer_id: str) -> bool:
    """Check whether the head, a version or a draft names the layer; True where one cannot be read."""
    if look.head is None or layer_id in look.head.layer_ids or look.store is not None:
        return True
    numbered = [name for name in look.names("manifests") if name.endswith(".json") and name[:-5].isdecimal()]
    drafts = [name for name in look.names("drafts") if os.path.isdir(f"{look.root}/drafts/{name}/layer")]
    try:
        return any(_names(look.version(f"manifests/{name}"), layer_id) for name in numbered if int(name[:-5]) <= look.head.version) or any(
            layer_id in look.document(f"drafts/{name}/draft.json").get("layer_ids", ()) for name in drafts
        )
    except (StoreCorrupt, OSError):
        return True


def _names(version: VersionRecord | None, layer_id: str) -> bool:
    return version is not None and (version.top == layer_id or any(layer.layer_id == layer_id for layer in version.layers or ()))


def draft(look: CheckContext, name: str) -> Iterator[Damage | None]:
    """Check one draft: its record, the layers that it names, its tree."""
    folder, body = f"drafts/{name}", dict[str, Any]()

    def document() -> Iterator[Damage]:
        body.clear()
        if not os.path.isdir(f"{look.root}/{folder}/layer"):
            look.note("left_over", folder, "the start of a draft whose work was never moved in; the next open removes it")
            return
        try:
            body.update(look.document(f"{folder}/draft.json"))
        except (StoreCorrupt, OSError) as error:
            yield from look.corrupt(error, f"{folder}/draft.json")
            return
        if body.get("draft_id") != name:
            yield Damage(f"{folder}/draft.json", f"belongs to {body.get('draft_id')}", "its name")
        for layer_id in body.get("layer_ids", ()):
            if layer_id != BASE_ID and not os.path.isdir(f"{look.root}/layers/{layer_id}"):
                yield Damage(f"layers/{layer_id}", f"is missing; {folder}/draft.json names it", "the draft")
        version = body.get("base_version")
        if look.head is not None and (not isinstance(version, int) or version > look.head.version):
            yield Damage(f"{folder}/draft.json", f"is based on version {version}, the head is {look.head.version}", "the manifest")
        elif isinstance(version, int) and look.other_layers(version, body.get("layer_ids", ())):
            yield Damage(f"{folder}/draft.json", f"names other layers than version {version} has", "comparing it with manifest.json")

    yield from look.settled(document)
    if body:
        plain = body.get("content", PLAIN_FORMAT) == PLAIN_FORMAT
        for found in _tree(look, f"{folder}/layer", None, body.get("digest") or None, body.get("bytes"), plain=plain):
            if (
                found is None or look.store is None or os.path.isdir(f"{look.root}/{folder}/layer")
            ):  # else it was discarded during the check
                yield found


def _tree(
    look: CheckContext, folder: str, index: str | None, digest: str | None, size: int | None = None, *, plain: bool = False
) -> Iterator[Damage | None]:
    """Check a tree against its index and its digest, or against its recorded size; `plain`: without an index,
    as in `one_tree.compare`.
    """
    if look.form is None:
        look.note("not_checked", folder, "its xattr namespace is unknown: workspace.json cannot be read")
        return
    if look.form.name == "trusted" and os.geteuid() != 0:
        look.note("not_checked", folder, f"only root can read {look.form.namespace}*")
        return
    found: list[Damage] = []
    said = 0

    def say(path: str, what: str, how: str) -> None:
        nonlocal said
        said += 1
        if said <= PER_TREE:
            found.append(Damage(f"{folder}/{path}" if path else folder, what, how))

    def blind(path: str) -> None:
        look.note("not_checked", f"{folder}/{path}", "this user may not read it")

    rows = one_tree.rows(index) if index is not None else None
    plain = plain if index is None else one_tree.is_plain(index)
    looking = one_tree.compare(f"{look.root}/{folder}", look.form, rows, say, blind, plain=plain)
    seen: one_tree.TreeFindings | None = None
    while True:
        try:
            next(looking)
        except StopIteration as end:
            seen = end.value
            break
        except StoreCorrupt as error:
            yield from look.corrupt(error, index or folder)
            break
        yield from found
        found.clear()
        yield None
    yield from found
    if said > PER_TREE:
        yield Damage(folder, f"has {said - PER_TREE} more differences that are not listed here", "the index")
    if seen is None:
        return
    look.counts = look.counts._replace(entries=look.counts.entries + seen.entries, bytes=look.counts.bytes + seen.bytes)
    if digest is not None and seen.digest != digest:
        yield Damage(folder, f"is not what was written: its digest is {seen.digest[:16]}…, recorded is {digest[:16]}…", "digest")
    if digest is None and size is not None and seen.bytes != size:
        yield Damage(folder, f"holds {seen.bytes} bytes, recorded are {size}", "its size")


def base(look: CheckContext) -> Iterator[Damage | None]:
    """Check that the base exists and, on request, that it is the one that the store was made with."""
    path = f"{look.base_dir}/{BASE_ID}"
    if not os.path.isdir(path):
        if look.store is None and not look.names("base"):
            look.note("not_checked", f"base/{BASE_ID}", "it is mounted there only while the sandbox runs")
        else:
            yield Damage(f"base/{BASE_ID}", "is missing", "its name")
        return
    if not look.base:
        look.note("not_checked", f"base/{BASE_ID}", "checking it reads every file of it: only on request")
        return
    told: list[Damage] = []
    blind: list[str] = []
    plain = look.body.get("content", PLAIN_FORMAT) == PLAIN_FORMAT
    looking = base_hash.tree_hash(os.path.realpath(path), lambda error: _base_failed(look, error, told, blind), plain=plain)
    found: str | None = None
    while True:
        try:
            next(looking)
        except StopIteration as end:
            found = end.value
            break
        yield None
    yield from told
    want = look.body.get("base_root_hash")
    if blind:
        look.note("not_checked", f"base/{BASE_ID}", f"this user may not read {len(blind)} of its entries")
    elif not look.body:
        look.note("not_checked", f"base/{BASE_ID}", "workspace.json, which has its hash, cannot be read")
    elif not told and found != want:
        yield Damage(
            f"base/{BASE_ID}", f"is not the base of this store: its hash is {str(found)[:16]}…, recorded is {str(want)[:16]}…", "hash"
        )


def _base_failed(look: CheckContext, error: OSError, told: list[Damage], blind: list[str]) -> None:
    name = os.path.relpath(os.fsdecode(error.filename or ""), os.path.realpath(f"{look.base_dir}/{BASE_ID}"))
    if error.errno in (errno.EACCES, errno.EPERM):
        blind.append(name)
    else:
        told.append(Damage(f"base/{BASE_ID}/{name}", f"cannot be read: {error.strerror}", "reading it"))
