"""The mutants: one change each to a file of the packages, what it breaks, and the tests that notice it."""

from __future__ import annotations

from typing import NamedTuple

MEETINGS = "tests/layerstack/test_meetings.py::test_sessions_that_meet_everywhere_show_what_the_model_shows[trusted]"


class Mutant(NamedTuple):
    """One fault. `old` stands in `file` exactly once."""

    name: str
    """`s` and the number of the survivor that it was among the first forty; `e` and a number for those of later changes."""
    file: str
    old: str
    new: str
    what: str
    """What is wrong then, for the table in docs/testing.md."""
    noticed_by: tuple[str, ...] = (MEETINGS,)
    """Tests as pytest names them: properties and random histories, none of which was written for this one fault."""
    soak: bool = False
    """Do these run in `make soak` only?"""

    def applied(self, text: str) -> str:
        """The text of the file with the fault. Raises ValueError: the place is gone, or there are several."""
        if text.count(self.old) != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: {self.file} has {text.count(self.old)} times: {self.old!r}")
        return text.replace(self.old, self.new)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "s3",
        "layerstack/rules.py",
        "if max(ours.size, head.size, base.size if base is not None else 0) > TEXT_MAX:",
        "if max(ours.size, head.size) > TEXT_MAX:",
        "a base too large for a text is merged by lines",
    ),
    Mutant(
        "s5",
        "layerstack/resolve.py",
        "                if not self.unmoved(q, b, h):\n                    if ignored:",
        "                if h.kind != DIRECTORY and not self.unmoved(q, b, h):\n                    if ignored:",
        "attributes that the head gave a directory are lost where ours made the one above anew",
    ),
    Mutant(
        "s8",
        "layerstack/resolve.py",
        'if kind == "parent" and any(a in self.conflicts for a in ancestors(path)):',
        'if kind == "parent" and parent_of(path) in self.conflicts:',
        "a lost subtree is reported more than once",
    ),
    Mutant(
        "s9",
        "layerstack/resolve.py",
        "if now.meta == h.meta and now.xattrs == h.xattrs:  # nothing",
        "if now.meta == h.meta:  # nothing",
        "xattrs that ours gave a directory are dropped when nothing else of ours is left in it",
    ),
    Mutant(
        "s11",
        "layerstack/publish.py",
        "own = (ready.indexed.records, work.indexed.records)",
        "own = (ready.indexed.records,)",
        "what met the work but not its rewritten form, between plan and commit, is not looked at again",
    ),
    Mutant(
        "s13",
        "layerstack/publish.py",
        "times = tree.state(above).times if edit.path else None",
        "times = None",
        "directories of a rewritten layer have the time of the publication",
    ),
    Mutant(
        "s17",
        "layerstack/capture.py",
        "        if moved:\n            tree.set_times(path, state.times)\n        del",
        "        del",
        "directories that sealing changed have the time of the sealing",
    ),
    Mutant(
        "s18",
        "layerstack/capture.py",
        "alive, moved = alive or over, True",
        "moved = True",
        "a FIFO over the only file of a directory: the publication fails with ENOTEMPTY",
    ),
    Mutant(
        "s23",
        "layerstack/reshape.py",
        "if state is not None and path not in self._touched:",
        "if state is not None:",
        "a directory that got or lost a name without a session keeps its old time",
    ),
    Mutant(
        "s29",
        "layerstack/gc.py",
        "            keep.update(lease.layer_ids)",
        "            pass",
        "layers of a live mount are swept",
    ),
    Mutant(
        "s30",
        "layerstack/gc.py",
        "if name not in keep and not store.damaged and owner_of(store.root, name) is None:",
        "if name not in keep and not store.damaged:",
        "a sweep takes the only copy of work whose commit failed and could not be undone",
        (
            "tests/layerstack/test_dead_disk.py::test_work_whose_publish_no_disk_would_undo_is_published_or_kept_whatever_comes_next[trusted]",
        ),
    ),
    Mutant(
        "s31",
        "layerstack/gc.py",
        'return home if documents.read(f"{home}/session.json")["token"] == about["upper"] else None',
        "return home",
        "a folded layer is kept for a later session of the name of the one that wrote it",
    ),
    Mutant(
        "s39",
        "layerstack/drafts.py",
        'durable.fsync_dir(f"{store.root}/drafts")',
        "pass",
        "the name of a draft is not synced",
        ("tests/layerstack/test_durable_names.py::test_each_new_name_is_synced_before_what_rests_on_it_is_acknowledged",),
    ),
)


def page() -> str:
    """The rows of the table in docs/testing.md."""
    rows = [
        f"| {m.name} | `{m.file}` | {m.what} | {'soak' if m.soak else 'gate'}: {', '.join(_short(test) for test in m.noticed_by)} |\n"
        for m in MUTANTS
    ]
    return "".join(["| mutant | file | what it breaks | noticed by |\n", "|---|---|---|---|\n", *rows])


def _short(test: str) -> str:
    return f"`{test.partition('::')[0].rpartition('/')[2]}`"
