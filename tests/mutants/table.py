"""The mutants: one change each to a file of the packages, what it breaks, and the tests that notice it."""

from __future__ import annotations

from typing import NamedTuple

STORM = "tests/layerstack/test_meetings.py::test_thousands_of_meetings_show_what_the_model_shows[trusted-0]"
MEETINGS = (
    "tests/layerstack/test_meetings.py::test_sessions_that_meet_everywhere_show_what_the_model_shows[trusted]"
)


class Mutant(NamedTuple):
    """One fault. `file` contains `old` exactly once."""

    name: str
    """`s` and the number of the survivor that it was among the first forty; `e` and a number for those of
    later changes.
    """
    file: str
    old: str
    new: str
    what: str
    """The effect of the fault, for the table in docs/testing.md."""
    noticed_by: tuple[str, ...] = (MEETINGS,)
    """Tests as pytest names them: properties, random histories, or the tests of the rule that is broken."""
    soak: bool = False
    """True: these run in `make soak` only."""

    def applied(self, text: str) -> str:
        """Return the text of the file with the fault. Raises ValueError: the place is gone, or there are
        several.
        """
        if text.count(self.old) != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: {self.file} has {text.count(self.old)} times: {self.old!r}")
        return text.replace(self.old, self.new)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "s3",
        "layerstack/publish/decide.py",
        "if max(ours.size, head.size, base.size if base is not None else 0) > TEXT_MAX:",
        "if max(ours.size, head.size) > TEXT_MAX:",
        "a base too large for a text is merged by lines",
    ),
    Mutant(
        "s5",
        "layerstack/publish/resolve.py",
        "                if not trees.unmoved(q, b, h):\n                    if ignored:",
        "                if h.kind != DIRECTORY and not trees.unmoved(q, b, h):\n                    if "
        "ignored:",
        "attributes that the head gave a directory are lost if ours recreated its parent",
        (STORM,),
        soak=True,
    ),
    Mutant(
        "s8",
        "layerstack/publish/meeting_report.py",
        'if kind == "parent" and any(a in conflicts for a in ancestors(path)):',
        'if kind == "parent" and path.rpartition("/")[0] in conflicts:',
        "a lost subtree is reported more than once",
        (STORM,),
        soak=True,
    ),
    Mutant(
        "s9",
        "layerstack/publish/resolve.py",
        "            now.meta == h.meta and now.xattrs == h.xattrs\n",
        "            now.meta == h.meta\n",
        "xattrs that ours gave a directory are dropped when nothing else of ours is left in it",
        (STORM,),
        soak=True,
    ),
    Mutant(
        "s11",
        "layerstack/publish/publish.py",
        "own = (ready.indexed.records, work.indexed.records)",
        "own = (ready.indexed.records,)",
        "what met the work but not its rewritten form, between plan and commit, is not looked at again",
        (STORM,),
        soak=True,
    ),
    Mutant(
        "s13",
        "layerstack/publish/publish.py",
        "times = tree.state(above).times if edit.path else None",
        "times = None",
        "directories of a rewritten layer have the time of the publication",
        (STORM,),
        soak=True,
    ),
    Mutant(
        "s17",
        "layerstack/layers/capture.py",
        "        if retime:\n            tree.set_times(path, state.times)\n        del",
        "        del",
        "directories that capture changed have the time of the capture",
    ),
    Mutant(
        "s18",
        "layerstack/layers/capture.py",
        "return EntryResult.REPLACED if over else EntryResult.GONE",
        "return EntryResult.GONE",
        "a FIFO over the only file of a directory: the publication fails with ENOTEMPTY",
    ),
    Mutant(
        "s23",
        "layerstack/session/path_changes.py",
        "if state is not None and path not in self._touched:",
        "if state is not None:",
        "a directory that got or lost a name without a session keeps its old time",
    ),
    Mutant(
        "s29",
        "layerstack/recovery/gc.py",
        "            keep.update(lease.layer_ids)",
        "            pass",
        "layers of a live mount are swept",
    ),
    Mutant(
        "s30",
        "layerstack/recovery/gc.py",
        "if name not in keep and not stack.damaged and owner_of(stack.root, name) is None:",
        "if name not in keep and not stack.damaged:",
        "a sweep takes the only copy of work whose commit failed and could not be undone",
        (
            "tests/layerstack/test_dead_disk.py::test_work_whose_publish_no_disk_would_undo_is_published_or_kept_whatever_comes_next[trusted]",
        ),
    ),
    Mutant(
        "s31",
        "layerstack/publish/commit.py",
        'return home if records.read_session(home)["token"] == about["upper"] else None',
        "return home",
        "a folded layer is kept for a later session of the name of the one that wrote it",
        (
            "tests/layerstack/test_gc.py::test_a_folded_layer_is_not_kept_for_a_later_session_of_the_name_of_its_writer",
        ),
    ),
    Mutant(
        "s39",
        "layerstack/publish/drafts.py",
        'fsync.fsync_dir(f"{stack.root}/drafts")',
        "pass",
        "the name of a draft is not synced",
        (
            "tests/layerstack/test_durable_names.py::test_each_new_name_is_synced_before_what_rests_on_it_is_acknowledged",
        ),
    ),
    Mutant(
        "e1",
        "layerstack/units/units.py",
        "            whose, forced = OURS, theirs & unlike",
        "            whose, forced = OURS, set[str]()",
        "a database of ours is published beside the head's helper files",
        (STORM,),
        soak=True,
    ),
    Mutant(
        "e2",
        "layerstack/units/units.py",
        "return self.HEADER in found or (bool(found) and not any(found))",
        "return self.HEADER in found",
        "an empty database is not a unit with its log",
        (STORM,),
        soak=True,
    ),
    Mutant(
        "e3",
        "layerstack/publish/publish.py",
        "                    or meet(own, newer, stack.rules.units)\n",
        "",
        "a unit that another publication met between plan and commit is not looked at again",
        (
            "tests/layerstack/test_units.py::test_a_unit_that_another_publication_changes_between_plan_and_commit_is_one_conflict",
        ),
    ),
    Mutant(
        "e4",
        "layerstack/units/units.py",
        'return path == root + "-shm"',
        "return False",
        "who only read a database is refused",
        ("tests/layerstack/test_units.py::test_who_only_read_a_database_takes_the_others",),
    ),
    Mutant(
        "e5",
        "layerstack/units/units.py",
        "ignored = all(map(sides.loose, {*changed, *there}))",
        "ignored = any(map(sides.loose, {*changed, *there}))",
        "a database of which only a part is ignored goes to the last writer",
        (
            "tests/layerstack/test_units.py::test_a_database_of_which_only_the_log_is_ignored_is_no_last_writers",
        ),
    ),
    Mutant(
        "e6",
        "layerstack/units/units.py",
        "        if pattern is not None and pattern.name_only:",
        "        if False:",
        "units of the configuration whose pattern begins with `**/` are none",
        ("tests/layerstack/test_units.py::test_units_of_the_configuration_are_kept_whole_too",),
    ),
    Mutant(
        "e7",
        "layerstack/publish/three_trees.py",
        "and self._own_rules.ignored(path, is_directory)",
        "",
        "what ours has taken out of `.gitignore` is still the last writer's",
        ("tests/layerstack/test_ignored_and_derived.py::test_and_so_is_what_the_session_itself_took_out",),
    ),
    Mutant(
        "e8",
        "layerstack/core/ignore_cache.py",
        "lambda path, is_directory: one(path, is_directory) and other(path, is_directory)",
        "lambda path, is_directory: one(path, is_directory)",
        "what the head has taken out of `.gitignore` is still the last writer's",
        (
            "tests/layerstack/test_ignored_and_derived.py::test_what_the_head_has_taken_out_of_gitignore_is_a_source_file",
        ),
    ),
    Mutant(
        "e9",
        "layerstack/publish/resolve.py",
        "                self.combine_ignored(path, b, o, h)\n",
        "                pass\n",
        "ignored texts of both sides are not merged",
        ("tests/layerstack/test_ignored_and_derived.py::test_ignored_text_merges_by_lines",),
    ),
    Mutant(
        "e10",
        "layerstack/tree/derived.py",
        'int.from_bytes(head[4:], "little") in (0, 3)',
        'int.from_bytes(head[4:], "little") in (0, 1, 3)',
        "byte code that no interpreter compares with its source gives way",
        (
            "tests/layerstack/test_ignored_and_derived.py::test_byte_code_that_is_not_compared_with_its_source_is_a_file_as_any_other",
        ),
    ),
    Mutant(
        "e11",
        "layerstack/tree/derived.py",
        "self.is_tagged(at) and all(self._ignored(path, state.kind == DIRECTORY) for state in there)\n",
        "self.is_tagged(at)\n",
        "sources beside a CACHEDIR.TAG give way to the head's",
        ("tests/layerstack/test_ignored_and_derived.py",),
    ),
    Mutant(
        "e12",
        "layerstack/publish/resolve.py",
        "            if h.kind != DIRECTORY and self.derived(path, b, h):\n                return "
        "self.give_way(path, h, Above.NOTHING)\n",
        "",
        "byte code that ours deleted and the head wrote is gone",
        (
            "tests/layerstack/test_ignored_and_derived.py::test_byte_code_never_conflicts_and_what_is_dropped_is_counted",
        ),
    ),
    Mutant(
        "e13",
        "eos_mcp/export/owner.py",
        "lost = self._own(fd, place, old.st_uid, old.st_gid)",
        'lost = self._own(fd, place, *self._gives(self._folder(path.rpartition(b"/")[0])))',
        "an export gives a replaced file to the owner of its folder",
        ("tests/eos_mcp/test_export_owner.py",),
    ),
    Mutant(
        "e14",
        "eos_mcp/export/owner.py",
        "            lost += self._attributes(fd, path)\n",
        "",
        "an export takes the attributes of a replaced file away",
        ("tests/eos_mcp/test_export_owner.py",),
    ),
    Mutant(
        "e15",
        "eos_mcp/export/owner.py",
        "return stat.S_ISGID if folder.setgid else 0",
        "return 0",
        "a directory that an export makes in a setgid folder has no such bit",
        ("tests/eos_mcp/test_export_owner.py",),
    ),
    Mutant(
        "e16",
        "eos_mcp/export/owner.py",
        "return folder.uid if self.root else self._uid, folder.gid if inherits else self._gid",
        "return folder.uid if self.root else self._uid, self._gid",
        "what an export makes has the group of the gateway",
        ("tests/eos_mcp/test_export_owner.py",),
    ),
    Mutant(
        "e17",
        "eos_mcp/export/hard_links.py",
        "if len(held.seen) < held.status.st_nlink or stat.S_IMODE(held.status.st_mode) != held.header.mode",
        "if len(held.seen) > held.status.st_nlink",
        "an export writes through a file that has other names",
        ("tests/eos_mcp/test_export_links.py::test_another_name_of_a_file_keeps_its_content_mode_and_time",),
    ),
    Mutant(
        "e18",
        "layerstack/export/stream.py",
        "ranges = _ranges(entry.real_path) if holes and content.has_holes(status) else None",
        "ranges = None",
        "an export fills holes",
        (
            "tests/eos_mcp/test_export_holes.py::test_a_file_of_terabytes_is_published_compared_merged_checked_and_exported_for_its_data",
        ),
    ),
    Mutant(
        "e19",
        "layerstack/layers/capture.py",
        'return git is not None and git_leftovers.is_named_so(path[len(git) :].lstrip("/"), kind)',
        "return False",
        "a lock of a killed git is published",
        ("tests/layerstack/test_half_done.py",),
    ),
    Mutant(
        "e20",
        "layerstack/layers/flatten.py",
        "if not some and not hides and quiet and under is not None and under.times[1] == state.times[1]:",
        "if not some and not hides and quiet:",
        "a squash gives a directory that got and lost a name its old time",
        ("tests/layerstack/test_directory_times.py::test_a_squash_changes_no_time_of_a_directory",),
    ),
    Mutant(
        "e21",
        "layerstack/publish/build_times.py",
        "                self._set(at, row.path, first(self._seen.times[at]))",
        "                pass",
        "on a head that moved inputs keep times that are older than outputs made without them",
        (
            "tests/layerstack/test_fresh.py::test_order_among_inputs_and_among_outputs_is_kept_and_equal_times_stay_equal",
        ),
    ),
    Mutant(
        "e22",
        "layerstack/publish/build_times.py",
        "                self._set(at, row.path, under(self._seen.times[at]))",
        "                pass",
        "on a head that moved outputs keep times that are newer than inputs they were not made from",
        (
            "tests/layerstack/test_fresh.py::test_order_among_inputs_and_among_outputs_is_kept_and_equal_times_stay_equal",
        ),
    ),
    Mutant(
        "e23",
        "layerstack/publish/build_times.py",
        "            if seen.old:",
        "            if False:",
        "an input that is restored with its old time is older than what was made without it",
        (
            "tests/layerstack/test_fresh.py::test_an_input_that_comes_with_an_old_time_is_newer_than_what_was_made_before",
        ),
    ),
    Mutant(
        "e24",
        "layerstack/layers/version_files.py",
        "at = bisect.bisect_left(layers, -version,",
        "at = bisect.bisect_right(layers, -version,",
        "an earlier version is opened without its newest layer",
    ),
)


def page() -> str:
    """Return the rows of the table in docs/testing.md."""
    rows = [
        (
            f"| {m.name} | `{m.file}` | {m.what} | {'soak' if m.soak else 'gate'}: "
            f"{', '.join(_short(test) for test in m.noticed_by)} |\n"
        )
        for m in MUTANTS
    ]
    return "".join(["| mutant | file | what it breaks | noticed by |\n", "|---|---|---|---|\n", *rows])


def _short(test: str) -> str:
    return f"`{test.partition('::')[0].rpartition('/')[2]}`"
