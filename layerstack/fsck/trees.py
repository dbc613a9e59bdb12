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


def layer(context: CheckContext, layer_id: str) -> Iterator[Damage | None]:
    """Check one layer with all its files; gives None after each entry."""
    folder, stem = f"layers/{layer_id}", f".layer-metadata/{layer_id}"
    if os.path.islink(f"{context.root}/{folder}"):
        yield Damage(folder, "is a symlink", "its kind")
        return
    if not os.path.isdir(f"{context.root}/{folder}"):
        return  # reported with the record that names it
    if not _is_named(context, layer_id):
        try:
            home = owner_of(context.root, layer_id)
        except (StoreCorrupt, OSError, KeyError):
            home = ""  # the next open keeps it too: it may be the only copy of the work
        if home is None:
            context.note("left_over", folder, "no manifest and no draft names it; the next open removes it")
            return  # an interrupted removal leaves a part of it
        context.note(
            "left_over",
            folder,
            "no manifest and no draft names it; the next open gives it back to its session, or keeps it",
        )
    about: dict[str, Any] | None = None
    index: str | None = None
    try:
        about = context.document(f"{stem}.json")
        yield from _identity(context, layer_id, about, stem)
    except (StoreCorrupt, OSError) as error:
        yield from context.corrupt(error, f"{stem}.json")
    try:
        checksum = one_tree.check_index(f"{context.root}/{stem}.index")
        if about is not None and about.get("index_sha256", checksum) != checksum:
            yield Damage(
                f"{stem}.index",
                "is intact, but the index of another layer",
                "its checksum in the layer's metadata",
            )
        else:
            index = f"{context.root}/{stem}.index"
    except FileNotFoundError:
        yield Damage(f"{stem}.index", "missing", "its name")
    except (StoreCorrupt, OSError) as error:
        yield from context.corrupt(error, f"{stem}.index")
    digest = None if about is None else str(about.get("digest"))
    yield from _tree(context, folder, index, digest)
    context.counts = context.counts._replace(layers=context.counts.layers + 1)


def _identity(context: CheckContext, layer_id: str, about: dict[str, Any], stem: str) -> Iterator[Damage]:
    """Check that the metadata files belong to the layer."""
    try:
        squashed = layer_id.startswith("S")
        mark = (
            squashed_id(0, about["digest"], about["replaced"])[-8:] if squashed else str(about["digest"])[:8]
        )
    except (KeyError, TypeError) as error:
        yield Damage(f"{stem}.json", f"lacks {error}", "its content")
        return
    if layer_id[-8:] != mark:
        yield Damage(f"{stem}.json", "is the metadata of another layer", "the digest in the layer's name")
    if squashed:
        yield from _blame(context, f"{stem}.blame", about)
        return
    try:
        data = records.content(f"{context.root}/{stem}.digest")
    except FileNotFoundError:
        yield Damage(f"{stem}.digest", "missing", "its name")
        return
    if data != str(about["digest"]).encode() + b"\n":
        yield Damage(f"{stem}.digest", "is not the layer's digest", "the layer's metadata")


def _blame(context: CheckContext, name: str, about: dict[str, Any]) -> Iterator[Damage]:
    """Check the file of owners of a squashed layer."""
    path = f"{context.root}/{name}"
    if not os.path.lexists(path):
        yield Damage(name, "missing", "its name")
        return
    blame_file.load(path)
    checksum = blame_file.checksum(path)
    if about.get("blame_sha256", checksum) != checksum:
        yield Damage(name, "is intact, but belongs to another layer", "its checksum in the layer's metadata")


def _is_named(context: CheckContext, layer_id: str) -> bool:
    """Check whether the head, a version or a draft names the layer; True where one cannot be read."""
    if context.head is None or layer_id in context.head.layer_ids or context.store is not None:
        return True
    numbered = [
        name for name in context.names("manifests") if name.endswith(".json") and name[:-5].isdecimal()
    ]
    drafts = [
        name for name in context.names("drafts") if os.path.isdir(f"{context.root}/drafts/{name}/layer")
    ]
    try:
        return any(
            _names(context.version(f"manifests/{name}"), layer_id)
            for name in numbered
            if int(name[:-5]) <= context.head.version
        ) or any(
            layer_id in context.document(f"drafts/{name}/draft.json").get("layer_ids", ()) for name in drafts
        )
    except (StoreCorrupt, OSError):
        return True


def _names(version: VersionRecord | None, layer_id: str) -> bool:
    return version is not None and (
        version.top == layer_id or any(layer.layer_id == layer_id for layer in version.layers or ())
    )


def draft(context: CheckContext, name: str) -> Iterator[Damage | None]:
    """Check one draft: its record, the layers that it names, its tree."""
    folder, body = f"drafts/{name}", dict[str, Any]()

    def document() -> Iterator[Damage]:
        body.clear()
        if not os.path.isdir(f"{context.root}/{folder}/layer"):
            context.note(
                "left_over",
                folder,
                "the start of a draft whose work was never moved in; the next open removes it",
            )
            return
        try:
            body.update(context.document(f"{folder}/draft.json"))
        except (StoreCorrupt, OSError) as error:
            yield from context.corrupt(error, f"{folder}/draft.json")
            return
        if body.get("draft_id") != name:
            yield Damage(f"{folder}/draft.json", f"belongs to {body.get('draft_id')}", "its name")
        for layer_id in body.get("layer_ids", ()):
            if layer_id != BASE_ID and not os.path.isdir(f"{context.root}/layers/{layer_id}"):
                yield Damage(f"layers/{layer_id}", f"is missing; {folder}/draft.json names it", "the draft")
        version = body.get("base_version")
        if context.head is not None and (not isinstance(version, int) or version > context.head.version):
            yield Damage(
                f"{folder}/draft.json",
                f"is based on version {version}, the head is {context.head.version}",
                "the manifest",
            )
        elif isinstance(version, int) and context.other_layers(version, body.get("layer_ids", ())):
            yield Damage(
                f"{folder}/draft.json",
                f"names other layers than version {version} has",
                "comparing it with manifest.json",
            )

    yield from context.confirmed(document)
    if body:
        plain = body.get("content", PLAIN_FORMAT) == PLAIN_FORMAT
        for found in _tree(
            context, f"{folder}/layer", None, body.get("digest") or None, body.get("bytes"), plain=plain
        ):
            if (
                found is None or context.store is None or os.path.isdir(f"{context.root}/{folder}/layer")
            ):  # else the draft was discarded during the check
                yield found


def _tree(
    context: CheckContext,
    folder: str,
    index: str | None,
    digest: str | None,
    size: int | None = None,
    *,
    plain: bool = False,
) -> Iterator[Damage | None]:
    """Check a tree against its index and its digest, or against its recorded size; `plain`: without an index,
    as in `one_tree.compare`.
    """
    if context.xattr_namespace is None:
        context.note("not_checked", folder, "its xattr namespace is unknown: workspace.json cannot be read")
        return
    if context.xattr_namespace.name == "trusted" and os.geteuid() != 0:
        context.note("not_checked", folder, f"only root can read {context.xattr_namespace.prefix}*")
        return
    found: list[Damage] = []
    said = 0

    def say(path: str, what: str, how: str) -> None:
        nonlocal said
        said += 1
        if said <= PER_TREE:
            found.append(Damage(f"{folder}/{path}" if path else folder, what, how))

    def blind(path: str) -> None:
        context.note("not_checked", f"{folder}/{path}", "this user may not read it")

    rows = one_tree.rows(index) if index is not None else None
    plain = plain if index is None else one_tree.is_plain(index)
    walk = one_tree.compare(
        f"{context.root}/{folder}", context.xattr_namespace, rows, say, blind, plain=plain
    )
    seen: one_tree.TreeFindings | None = None
    while True:
        try:
            next(walk)
        except StopIteration as end:
            seen = end.value
            break
        except StoreCorrupt as error:
            yield from context.corrupt(error, index or folder)
            break
        yield from found
        found.clear()
        yield None
    yield from found
    if said > PER_TREE:
        yield Damage(folder, f"has {said - PER_TREE} more differences that are not listed here", "the index")
    if seen is None:
        return
    context.counts = context.counts._replace(
        entries=context.counts.entries + seen.entries, bytes=context.counts.bytes + seen.bytes
    )
    if digest is not None and seen.digest != digest:
        yield Damage(
            folder,
            f"is not what was written: its digest is {seen.digest[:16]}…, recorded is {digest[:16]}…",
            "digest",
        )
    if digest is None and size is not None and seen.bytes != size:
        yield Damage(folder, f"holds {seen.bytes} bytes, recorded are {size}", "its size")


def base(context: CheckContext) -> Iterator[Damage | None]:
    """Check that the base exists and, on request, that it is the one that the store was made with."""
    path = f"{context.base_dir}/{BASE_ID}"
    if not os.path.isdir(path):
        if context.store is None and not context.names("base"):
            context.note("not_checked", f"base/{BASE_ID}", "it is mounted there only while the sandbox runs")
        else:
            yield Damage(f"base/{BASE_ID}", "is missing", "its name")
        return
    if not context.base:
        context.note(
            "not_checked", f"base/{BASE_ID}", "it is checked on request only, since every file of it is read"
        )
        return
    reported: list[Damage] = []
    blind: list[str] = []
    plain = context.body.get("content", PLAIN_FORMAT) == PLAIN_FORMAT
    walk = base_hash.tree_hash(
        os.path.realpath(path), lambda error: _base_failed(context, error, reported, blind), plain=plain
    )
    found: str | None = None
    while True:
        try:
            next(walk)
        except StopIteration as end:
            found = end.value
            break
        yield None
    yield from reported
    want = context.body.get("base_root_hash")
    if blind:
        context.note("not_checked", f"base/{BASE_ID}", f"this user may not read {len(blind)} of its entries")
    elif not context.body:
        context.note("not_checked", f"base/{BASE_ID}", "workspace.json, which has its hash, cannot be read")
    elif not reported and found != want:
        yield Damage(
            f"base/{BASE_ID}",
            f"is not the base of this store: its hash is {str(found)[:16]}…, recorded is {str(want)[:16]}…",
            "hash",
        )


def _base_failed(context: CheckContext, error: OSError, reported: list[Damage], blind: list[str]) -> None:
    name = os.path.relpath(
        os.fsdecode(error.filename or ""), os.path.realpath(f"{context.base_dir}/{BASE_ID}")
    )
    if error.errno in (errno.EACCES, errno.EPERM):
        blind.append(name)
    else:
        reported.append(Damage(f"base/{BASE_ID}/{name}", f"cannot be read: {error.strerror}", "reading it"))
