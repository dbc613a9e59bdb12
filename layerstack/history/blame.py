"""Find the author of each line of a path, from the layers that list the path; only squashed layers store
authors.

The texts of a path are those of the layers that list it, newest first, down to the layer that created it. A
line belongs to the layer whose text has the line while the next older text does not, according to the diff
that a merge uses. A deleted path has the authors of its last text.

A squashed layer has the answers of the layers that it replaced: `.layer-metadata/<id>.blame` has for each
path the author, or the ranges from before the squash.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from layerstack.core.stack import Stack
from layerstack.errors import InvalidPath, LayerStackError, NotFound
from layerstack.history.blame_file import SUFFIX, Answer, LayerBlame, Range, load
from layerstack.layers.chain import Chain
from layerstack.layers.index import Layer
from layerstack.layers.packed_index import Packed, PackedIndex
from layerstack.model.conflict import path_json
from layerstack.model.paths import ancestors, byte_order, check, join, parent
from layerstack.text.lines import TEXT_MAX, diff, is_text, number_lines, numbering
from layerstack.text.myers import BUDGET, Budget
from layerstack.tree.state import DIRECTORY, FILE, LINK, State, same

ORIGINAL, UNKNOWN = "original", "unknown"
WORK = 10 * BUDGET
"""Steps of all diffs of one answer, about 2 s; each diff has the budget of a merge. Lines that are undecided
after them are `unknown`.
"""
LINES = 8_000_000
"""Lines of all texts that are read for one answer."""
KEPT, KEPT_RANGES = 256, 200_000
"""Answers that a store remembers, and the sum of their ranges."""
RULED_KEPT = 20_000
"""Directories for which a squash remembers whether they have a `.gitignore`."""
KEPT_FILES = 4
"""Files of squashed layers that stay in memory."""


class Cache:
    """The last answers of a store, by path and the layers that list it: they stay valid after a publication
    of other paths.
    """

    def __init__(self, root: str) -> None:
        """
        Args:
            root: the folder of the store.
        """
        self._root, self._lock = root, threading.Lock()
        self._kept: OrderedDict[tuple[str, ...], Answer] = OrderedDict()
        self._ranges = 0
        self._by_file: OrderedDict[str, Mapping[str, LayerBlame]] = OrderedDict()

    def entries(self, layer: Layer) -> Mapping[str, LayerBlame]:
        """The owners that a squashed layer recorded; empty for a layer of one publish."""
        return (
            self.of_file(f"{self._root}/.layer-metadata/{layer.id}{SUFFIX}")
            if layer.id.startswith("S")
            else {}
        )

    def of_file(self, file: str) -> Mapping[str, LayerBlame]:
        """Load a file; the last few are kept."""
        with self._lock:
            found = self._by_file.pop(file, None)
        if found is None:
            found = load(file)
        with self._lock:
            self._by_file[file] = found
            while len(self._by_file) > KEPT_FILES:
                self._by_file.popitem(last=False)
        return found

    def get(self, key: tuple[str, ...]) -> Answer | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: tuple[str, ...], answer: Answer) -> None:
        with self._lock:
            self._ranges += len(answer) - len(self._kept.pop(key, ()))
            self._kept[key] = answer
            while len(self._kept) > KEPT or self._ranges > KEPT_RANGES:
                self._ranges -= len(self._kept.popitem(last=False)[1])


class _Text(NamedTuple):
    """The text that one layer gave to the path."""

    layer: Layer
    path: str
    there: bool
    """False: the layer deleted it, by a whiteout or with a directory above."""

    @property
    def state(self) -> State | None:
        return self.layer.tree.state(self.path) if self.there else None


def blame(stack: Stack, cache: Cache, path: str) -> Answer:
    """List the ranges of a path of the head, in order and without gaps; for a deleted path those of its last
    text.

    Symlinks, binary files, files above TEXT_MAX and ignored files have one range of one line, with their last
    author. An empty file has no range.
    Raises:
        NotFound: no publication made or changed such a file (reason no_auditability_record); also for a
            directory.
        InvalidPath: not a path of a tree.
    Cost: bounded by WORK and LINES, without the store's lock; later a dictionary look-up, until the path
    changes.
    """
    if check(path) == "":
        raise InvalidPath(
            "the root of the workspace is a directory: blame takes the path of a file", details={"path": path}
        )
    with stack.reading() as snapshot:
        chain = snapshot.chain
        texts = _texts(chain, path, _masking_above(chain, path))
        key = (path, *(text.layer.id for text in texts))
        answer = cache.get(key)
        if answer is None:
            answer = _answer(stack, cache, chain, path, texts)
            if answer is None:
                shown = path_json(path)
                raise NotFound(
                    f"no auditability record for path: {shown['path']}",
                    reason="no_auditability_record",
                    details=shown,
                )
            cache.put(key, answer)
        return answer


def of_block(stack: Stack, block: Sequence[Layer], below: Chain) -> Iterator[tuple[str, LayerBlame]]:
    """Give the entries that a squash must store, in byte order of paths; `block` are its layers, newest
    first, on top of `below`.

    A path that one layer of the block lists has its author; a path that several list has its ranges, also if
    it is deleted. Runs without the store's lock. Cost: that of `blame` for each path with ranges; other files
    are not read.
    """
    cache = Cache(stack.root)
    seen = Chain((*block, *below.published), below.path_index, below.xattr_namespace)
    members = {layer.id for layer in block}
    ruled: dict[str, bool] = {}

    def may_be_ignored(path: str) -> bool:
        """Check whether any version has a .gitignore in a directory above the path. If not, no author's base
        version needs to be opened.
        """
        if len(ruled) > RULED_KEPT:
            ruled.clear()
        for directory in ancestors(path):
            if directory not in ruled:
                name = join(directory, ".gitignore")
                ruled[directory] = bool(seen.path_index.listing(name)) or seen.base.get(name) is not None
            if ruled[directory]:
                return True
        return False

    above: dict[str, dict[str, Layer]] = {}

    def masking_above(path: str) -> dict[str, Layer]:
        """Give the layers that changed everything below a directory above the path, by id."""
        directory = parent(path)
        if directory not in above:
            if len(above) > RULED_KEPT:
                above.clear()
            above[directory] = _masking_above(seen, path)
        return above[directory]

    for path in _written(cache, block):
        texts = _texts(seen, path, masking_above(path))
        inside = [text for text in texts if text.layer.id in members]
        if len(inside) == 1 and inside[0].there and _whole_answer(cache, inside[0].layer, path) is None:
            owner = _owner(cache, inside[0])
            yield (
                path,
                (Range(1, 1, owner),) if may_be_ignored(path) and _ignored(stack, inside[0]) else owner,
            )
        elif (answer := _answer(stack, cache, seen, path, texts)) is not None:
            yield path, answer


def _written(cache: Cache, block: Sequence[Layer]) -> Iterator[str]:
    """List the paths with a text in one of the layers, in byte order, each once. Paths of packed indexes are
    not collected.
    """
    few: set[bytes] = set()
    many: list[Iterator[bytes]] = []
    for layer in block:
        if isinstance(layer.index, PackedIndex):
            many.append(path for path, record in layer.index.walk() if record.kind in (FILE, LINK))
        else:
            few.update(
                byte_order(path)
                for path, record in (layer.index or {}).items()
                if record.kind in (FILE, LINK)
            )
        of_file = cache.entries(layer)
        if isinstance(of_file, Packed):
            many.append(path for path, _ in of_file.walk())
        else:
            few.update(map(byte_order, of_file))
    for path, _ in itertools.groupby(heapq.merge(sorted(few), *many)):
        yield os.fsdecode(path)


def _masking_above(chain: Chain, path: str) -> dict[str, Layer]:
    """Give the layers that changed everything below a directory above the path, by id."""
    return {layer.id: layer for ancestor in ancestors(path) for layer in chain.path_index.masking(ancestor)}


def _texts(chain: Chain, path: str, masking: Mapping[str, Layer]) -> list[_Text]:
    """List the texts that the layers above the base gave to the path, newest first; unchanged containers left
    out. `masking` is `_masking_above` of the path.
    """
    hits: dict[str, Layer] = {layer.id: layer for layer in chain.path_index.listing(path)}
    found: list[_Text] = []
    for layer in chain.sorted((hits | dict(masking) if masking else hits).values()):
        record = layer.get(path)
        if record is None or record.kind not in (FILE, DIRECTORY, LINK):
            found.append(_Text(layer, path, False))
        elif not record.quiet:
            found.append(_Text(layer, path, True))
    return found


def _owner(cache: Cache, text: _Text) -> str:
    entry = cache.entries(text.layer).get(text.path)
    return entry if isinstance(entry, str) else str(text.layer.about.get("owner") or UNKNOWN)


def _whole_answer(cache: Cache, layer: Layer, path: str) -> Answer | None:
    """Give the whole answer, if a squashed layer has it."""
    entry = cache.entries(layer).get(path)
    return entry if isinstance(entry, tuple) else None


def _answer(stack: Stack, cache: Cache, chain: Chain, path: str, texts: Sequence[_Text]) -> Answer | None:
    at = 0
    while at < len(texts) and not texts[at].there:
        if (entry := _whole_answer(cache, texts[at].layer, path)) is not None:
            return entry
        at += 1
    if at == len(texts):
        return _forgotten(cache, chain, path)
    layer, state = texts[at].layer, texts[at].state
    assert state is not None
    if state.kind == DIRECTORY:
        return None
    if (entry := _whole_answer(cache, layer, path)) is not None:
        return entry
    base = chain.base.tree.state(path) if chain.base.get(path) is not None else None
    if state.kind != FILE or state.size > TEXT_MAX or _ignored(stack, texts[at]) or not is_text(state.data()):
        return (Range(1, 1, _last_writer(cache, texts[at:], base)),)
    return _merged(_BlameWalk(cache, path).lines(texts[at:], base))


def _forgotten(cache: Cache, chain: Chain, path: str) -> Answer | None:
    """Answer for a path that was made and deleted among layers that are squashed now: no layer lists it."""
    for layer in chain.published:
        if (entry := _whole_answer(cache, layer, path)) is not None:
            return entry
    return None


def _last_writer(cache: Cache, texts: Sequence[_Text], base: State | None) -> str:
    """Find the author of the newest text that differs from the next older one."""
    state = texts[0].state
    for n, text in enumerate(texts):
        below = texts[n + 1].state if n + 1 < len(texts) else base
        if state is None or below is None or not same(state, below):
            return _owner(cache, text)
        state = below
    return ORIGINAL


def _ignored(stack: Stack, text: _Text) -> bool:
    """Check whether the path was ignored when the layer was published, by the version that its author started
    from.
    """
    if text.layer.id.startswith("S"):
        return False  # else its .blame file would have one range
    try:
        return stack.routes.ignored(int(text.layer.about["base_version"]))(text.path, False)
    except LayerStackError:  # no longer openable: its rules are nearly always the head's
        return stack.routes.ignored(stack.head.version)(text.path, False)


def _merged(owners: Sequence[tuple[int, str]]) -> Answer:
    """Turn (count, owner) in order into ranges, neighbours of one owner joined."""
    found: list[Range] = []
    at = 1
    for count, owner in owners:
        if not count:
            continue
        if found and found[-1].owner == owner:
            found[-1] = Range(found[-1].start_line, found[-1].line_count + count, owner)
        else:
            found.append(Range(at, count, owner))
        at += count
    return tuple(found)


class _BlameWalk:
    """Walk from the newest text to older ones until each line has an owner. Each line of the present text is
    mapped to its line in the newest text.
    """

    def __init__(self, cache: Cache, path: str) -> None:
        self.cache, self.path = cache, path
        self.steps_left, self.lines_left = WORK, LINES
        self.numbers = numbering()

    def read(self, state: State) -> bytes | None:
        """Read a text; None for anything else."""
        if state.kind != FILE or state.size > TEXT_MAX:
            return None
        data = state.data()
        return data if is_text(data) else None

    def lines(self, texts: Sequence[_Text], base: State | None) -> list[tuple[int, str]]:
        """Give (count, owner) for the lines of the newest text, in order."""
        state = texts[0].state
        data = self.read(state) if state is not None else None
        assert data is not None
        now = number_lines(data, self.numbers)
        owners: list[str | None] = [None] * len(now)
        place = array("l", range(len(now)))  # each line's number in the newest text; -1: none
        undecided = len(now)
        last = UNKNOWN
        for n, text in enumerate(texts):
            entry = _whole_answer(self.cache, text.layer, self.path)
            if entry is not None:
                for part in entry:
                    self.give(
                        owners, place, part.start_line - 1, part.start_line - 1 + part.line_count, part.owner
                    )
                undecided = 0
                break
            below = texts[n + 1].state if n + 1 < len(texts) else base
            if below is None or below.kind != FILE:
                last = _owner(self.cache, text)
                break
            self.lines_left -= len(now)
            if self.steps_left < BUDGET or self.lines_left < 0:
                break
            older = self.read(below)
            if older is None:  # the older file is binary or too large: which lines are new is unknown
                last = _owner(self.cache, text) if below.size <= TEXT_MAX else UNKNOWN
                break
            if older != data:
                then = number_lines(older, self.numbers)
                owner, before = _owner(self.cache, text), array("l", [-1]) * len(then)
                at_then, at, budget = 0, 0, Budget(BUDGET)
                for region in diff(then, now, budget):
                    before[at_then : region.alo] = place[at : region.blo]
                    undecided -= self.give(owners, place, region.blo, region.bhi, owner)
                    at_then, at = region.ahi, region.bhi
                before[at_then:] = place[at:]
                self.steps_left -= BUDGET - budget.steps
                now, place, data = then, before, older
            if not undecided:
                break
            if n + 1 == len(texts):
                last = ORIGINAL
        return [(1, last if owner is None else owner) for owner in owners]

    @staticmethod
    def give(owners: list[str | None], place: array[int], lo: int, hi: int, owner: str) -> int:
        """Assign the lines [lo, hi) of the present text to `owner`. Returns the number of them that are in
        the newest text.
        """
        given = 0
        for line in place[lo:hi]:
            if line >= 0:
                owners[line] = owner
                given += 1
        return given
