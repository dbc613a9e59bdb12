"""Check the records of a store against their checksums and against each other: each name refers to something
that exists.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from layerstack.errors import StoreCorrupt
from layerstack.fsck.parts import CheckContext, Damage
from layerstack.kernel import records
from layerstack.kernel.xattrs import XATTR_NAMESPACES
from layerstack.model.manifest import BASE_ID, Manifest, reference
from layerstack.session import saved_work

NAMES = {"manifests", "layers", "base", ".layer-metadata", "sessions", "drafts", "pins", "staging"}
FILES = {"manifest.json", "workspace.json", ".storage-writer.lock", "command-counter.json"}
"""Files at the top of a store. The last one belongs to the agent: the numbers of its commands."""


def top(context: CheckContext) -> Iterator[Damage]:
    """Check the files of the store itself, its manifests, and unknown files beside them."""
    try:
        body = context.document("workspace.json")
        if str(body.get("form")) not in XATTR_NAMESPACES:
            yield Damage("workspace.json", f"form {body.get('form')!r} is unknown", "its content")
    except (StoreCorrupt, OSError) as error:
        yield from context.corrupt(error, "workspace.json")
    head: Manifest | None = None
    try:
        head = context.manifest("manifest.json")
    except (StoreCorrupt, OSError) as error:
        yield from context.corrupt(error, "manifest.json")
    yield from _versions(context, head)
    yield from _metadata(context)
    for name in context.names("."):
        if name.startswith(".") and name.endswith(".tmp"):
            context.note("left_over", name, "half-written; the next open removes it")
        elif name not in NAMES | FILES:
            context.note("unknown", name, "not a file that this version makes")
    for name in sorted(NAMES - {"pins"}):
        if not os.path.isdir(f"{context.root}/{name}"):
            yield Damage(name, "is missing", "its name")


def _versions(context: CheckContext, head: Manifest | None) -> Iterator[Damage]:
    there, reported = {BASE_ID, *context.names("layers")}, set[str]()
    blocks = [
        about
        for about in map(context.about, head.layer_ids if head is not None else ())
        if about and about.get("first_version")
    ]
    seen_head = head is None
    for name in context.names("manifests"):
        file, (stem, _, suffix) = f"manifests/{name}", name.partition(".")
        if not stem.isdecimal() or suffix != "json":
            context.note(
                "left_over" if name.endswith(".tmp") else "unknown", file, "not the manifest of a version"
            )
            continue
        if head is not None and int(stem) > head.version:
            context.note(
                "left_over", file, "of a version that never became the head; the next open removes it"
            )
            continue
        try:
            found = context.version(file)
        except (StoreCorrupt, OSError) as error:
            seen_head = seen_head or (head is not None and int(stem) == head.version)
            yield from context.corrupt(error, file)
            continue
        if found is None:
            seen_head = seen_head or (head is not None and int(stem) == head.version)
            context.note(
                "left_over",
                file,
                "its bytes were lost in a power cut; the next open writes them again, from manifest.json",
            )
            continue
        if found.version != int(stem):
            yield Damage(file, f"belongs to version {found.version}", "its name")
        if head is not None and found.version == head.version:
            seen_head = True
            if found.top != head.layers[0].layer_id or found.layers not in (None, head.layers):
                yield Damage(
                    file,
                    "names other layers than manifest.json names for the same version",
                    "comparing the two",
                )
                continue
        if any(int(about["first_version"]) <= int(stem) < int(about["version"]) for about in blocks):
            context.note(
                "left_over", file, "of a version inside a squashed run of layers; the next open removes it"
            )
            continue
        layer_ids = [found.top] if found.layers is None else [layer.layer_id for layer in found.layers]
        for layer_id in layer_ids:
            if layer_id not in there and layer_id not in reported:
                reported.add(layer_id)
                yield Damage(reference(layer_id).path, f"is missing; {file} names it", "the manifest")
        if (
            context.another_top(found.version, found.top)
            if found.layers is None
            else context.other_layers(found.version, layer_ids)
        ):
            yield Damage(
                file,
                f"names other layers than version {found.version} has",
                "comparing it with manifest.json",
            )
    if not seen_head and head is not None:
        yield Damage(f"manifests/{head.version}.json", "is missing, the head is that version", "the manifest")
    if head is not None:
        for layer_id in head.layer_ids:
            if layer_id not in there and layer_id not in reported:
                yield Damage(reference(layer_id).path, "is missing; manifest.json names it", "the manifest")


def _metadata(context: CheckContext) -> Iterator[Damage]:
    there = set(context.names("layers"))
    for name in context.names(".layer-metadata"):
        stem, suffix = os.path.splitext(name)
        if suffix not in (".json", ".index", ".digest", ".blame"):
            context.note("unknown", f".layer-metadata/{name}", "not a file that this version makes")
        elif stem not in there and (context.head is None or stem not in context.head.layer_ids):
            context.note(
                "left_over",
                f".layer-metadata/{name}",
                "of a layer that does not exist; the next open removes it",
            )
    yield from ()


def pins(context: CheckContext) -> Iterator[Damage]:
    """Check each pin, and the version that it names."""
    for name in context.names("pins"):
        file, (stem, _, suffix) = f"pins/{name}", name.partition(".")
        if not stem.isdecimal() or suffix != "json":
            context.note("left_over" if name.endswith(".tmp") else "unknown", file, "not a pin")
            continue
        try:
            body = context.document(file)
        except (StoreCorrupt, OSError) as error:
            yield from context.corrupt(error, file)
            continue
        if body.get("version") != int(stem):
            yield Damage(file, f"pins version {body.get('version')}", "its name")
        elif not os.path.exists(f"{context.root}/manifests/{stem}.json"):
            yield Damage(file, f"pins version {stem}, which does not exist", "the manifests")


def session(context: CheckContext, name: str) -> Iterator[Damage]:
    """Check one session's record, and the version and draft that it is based on."""
    folder = f"sessions/{name}"
    if not os.path.lexists(f"{context.root}/{folder}"):
        return  # it ended since it was listed
    try:
        body = records.read_session(f"{context.root}/{folder}")
        saved = saved_work.load(f"{context.root}/{folder}", body)
    except (StoreCorrupt, OSError) as error:
        yield from context.corrupt(error, f"{folder}/session.json")
        return
    if body.get("session_id") != name:
        yield Damage(f"{folder}/session.json", f"belongs to session {body.get('session_id')}", "its name")
        return
    for number in saved.parents:
        layer = saved_work.folder(folder, number)
        if not os.path.isdir(f"{context.root}/{layer}"):
            yield Damage(layer, "is missing; a checkpoint of the session names it", "session.json")
    version, head = body.get("base_version"), context.head
    if head is not None and (not isinstance(version, int) or version > head.version):
        yield Damage(
            f"{folder}/session.json",
            f"is based on version {version}, the head is {head.version}",
            "the manifest",
        )
    draft_id = body.get("draft_id")
    if (
        draft_id is not None
        and not body.get("rebased")
        and not os.path.isdir(f"{context.root}/drafts/{draft_id}/layer")
    ):
        yield Damage(f"{folder}/session.json", f"is based on {draft_id}, which does not exist", "the drafts")
    context.note(
        "left_over",
        folder,
        "work of a process that has ended; the next open makes a draft of it, unless it was published",
    )


def leases(context: CheckContext) -> Iterator[Damage]:
    """Check that the layers under leases of this process exist."""
    assert context.store is not None
    reported = set[str]()
    for lease in context.store.leases.all():
        for layer_id in lease.layer_ids:
            if (
                layer_id not in reported
                and layer_id != BASE_ID
                and not os.path.isdir(f"{context.root}/layers/{layer_id}")
            ):
                reported.add(layer_id)
                yield Damage(
                    f"layers/{layer_id}", f"is missing; the lease of {lease.name} names it", "the leases"
                )


def staging(context: CheckContext) -> Iterator[Damage]:
    """Report leftovers."""
    for name in context.names("staging"):
        context.note(
            "left_over", f"staging/{name}", "of an operation that did not finish; the next open removes it"
        )
    yield from ()
