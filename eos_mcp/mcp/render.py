"""Results as text that a model reads: complete by itself, since some clients show nothing else; compact,
since it costs tokens.

The text of an operation is compact JSON, unless `_TEXTS` has a function for it: for frequent operations, and
for those whose answer names the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eos_mcp.mcp import known_clients, render_checkpoints, render_conflicts, render_files
from eos_mcp.mcp.json_values import Object, compact, is_object, items, rows, shown_path
from eos_mcp.mcp.known_clients import LARGE_PAGE
from eos_mcp.mcp.offered_tools import EVERY_TOOL, OfferedTools
from eos_mcp.mcp.plain_text import plain
from eos_mcp.mcp.render_git_export import git_export
from eos_mcp.mcp.render_notices import notice_lines
from eos_mcp.mcp.terminal_output import without_blank_rows

# Above this many characters a text shows head and tail, or the first lines, and says how to get the rest.
TEXT_LIMIT = 20_000
HEAD = 8_000
TAIL = 8_000


def result(name: str, args: Object, reply: Object, tools: OfferedTools = EVERY_TOOL) -> str:
    """The text of one reply of operation `name`, error envelopes included; it names no tool but `tools`."""
    if "error" in reply:
        return error(reply["error"], name, tools)
    text_of = _TEXTS.get(name)
    try:
        if name in _COMMANDS:
            return _command(args, reply, tools)
        return compact(reply) if text_of is None else text_of(args, reply)
    except (
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
    ):  # a reply of another shape than the function knows
        return compact(reply)


EXPORT_LINES = 50
"""Paths of a refused export that its text lists."""


def error(failure: Object, name: str, tools: OfferedTools = EVERY_TOOL) -> str:
    """The text of an error envelope: what failed, why, every conflict, what to do next."""
    details = dict(failure.get("details") or {})
    rejection = details.pop("publish_rejection", None)
    last_lines = details.pop("last_lines", None)
    hint = details.pop("hint", None)
    details.pop("request_id", None)
    why = f", {details.pop('reason', None)}" if is_object(rejection) and "reason" in details else ""
    lines = [f"{name} failed: {failure.get('message')} ({failure.get('kind')}{why})"]
    if is_object(rejection):
        lines += render_conflicts.rejection(rejection)
        lines.append(render_conflicts.next_step({**details, "publish_rejection": rejection}, tools))
        hint = None  # `next_step` has it, with ids
        for said in ("workspace_session_id", "draft_id", "stage"):
            details.pop(said, None)
    details.pop("session_retained", None)
    if name == "export_changes":
        for key, said in (("conflicts", "differs"), ("unsafe", "why")):
            found = rows(details.pop(key, None))
            lines += [f"  {row.get('path')}: {row.get(said)}" for row in found[:EXPORT_LINES]]
            if len(found) > EXPORT_LINES:
                lines.append(f"  and {len(found) - EXPORT_LINES} more rows in the structured content")
    if last_lines is not None:
        lines += ["its last lines:", "", plain(str(last_lines)), ""] if last_lines else ["it printed nothing"]
    if details:
        lines.append("details: " + compact(details))
    if hint:
        lines.append(f"next: {hint}")
    return "\n".join(lines)


def was_cut(reply: Object) -> bool:
    """Return True when the text of a command's reply leaves out a part of its output."""
    return len(str(reply.get("output") or "")) > TEXT_LIMIT


def _limit(args: Object, least: int) -> int:
    """Limit in characters of the lines in a text; larger if the call asks for more lines than the default."""
    return LARGE_PAGE if known_clients.asks_for_more(args) else least


def head_and_tail(text: str, first_line: int, more: Callable[[int], str], *, limit: int = TEXT_LIMIT) -> str:
    """`text`, or its first and last lines around a marker with the sizes.

    Args:
        first_line: number of the text's first line, as `more` counts.
        more: line number -> the call that reads from there.
    """
    if len(text) <= limit:
        return text
    head = text[:HEAD]
    head = head[: head.rfind("\n") + 1] or head
    tail = text[-TAIL:]
    tail = tail[tail.find("\n") + 1 :] or tail
    left_out = len(text) - len(head) - len(tail)
    line = first_line + head.count("\n")
    mark = (
        f"[... {left_out} characters left out of {len(text.encode(errors='replace'))} bytes; "
        f"{more(line)} ...]"
    )
    return f"{head.rstrip(chr(10))}\n{mark}\n{tail}"


def _with_tail(reply: Object, output: str, tail: Object, first_line: int, more: Callable[[int], str]) -> str:
    """The beginning of an output that was cut, and its end."""
    head = output[:HEAD]
    head = head[: head.rfind("\n") + 1] or head
    end = str(tail.get("output") or "")[-TAIL:]
    line = first_line + head.count("\n")
    size = f", of {reply['total_bytes']} bytes in all" if reply.get("total_bytes") else ""
    mark = f"[... lines {line} to {tail.get('start_offset')} left out{size}; {more(line)} ...]"
    return f"{head.rstrip(chr(10))}\n{mark}\n{end}"


def _command(args: Object, reply: Object, tools: OfferedTools) -> str:
    command_id = reply.get("command_session_id")
    status = reply.get("status")
    seconds = reply.get("command_total_time_seconds")
    about = [str(status)]
    if reply.get("exit_code") is not None:
        by = f" (signal {reply['signal']})" if reply.get("signal") else ""
        about.append(f"exit code {reply['exit_code']}{by}")
    if isinstance(seconds, (int, float)):
        about.append(f"{seconds:.2f} s")
    start, end, total = (reply.get(key, 0) for key in ("start_offset", "end_offset", "total_lines"))
    part = (start, end) != (0, total) and not is_object(reply.get("tail"))
    about.append(f"lines {start} to {end} of {total}" if part else f"{total} lines")
    if command_id:
        about.append(f"command_session_id {command_id}")
    if reply.get("workspace_session_id") and status == "running" and _is_one_off(args):
        # for a look at its files; it is gone with the command
        about.append(f"workspace_session_id {reply['workspace_session_id']}")
    lines = ["; ".join(about)]
    output = str(reply.get("output") or "")

    def more(line: int) -> str:
        if command_id is None:
            return "run it again with the output in a file to read the rest"
        return (
            f"read_command_lines command_session_id={command_id} start_offset={line} has the rest; "
            f"pattern=REGEX searches all lines"
        )

    tail = reply.get("tail")
    if output and is_object(tail):
        lines += ["", _with_tail(reply, output, tail, int(start or 0), more), ""]
    elif output:
        whole = head_and_tail(output, int(start or 0), more, limit=_limit(args, TEXT_LIMIT))
        lines += ["", without_blank_rows(whole), ""]
    if reply.get("screen") is not None:
        lines += ["the screen of the program now:", "", str(reply["screen"]), ""]
    if reply.get("stderr"):
        lines += [
            "stderr:",
            head_and_tail(str(reply["stderr"]), 0, lambda _line: "run it again with stderr in a file"),
            "",
        ]
    lines += _command_notes(reply, command_id, tools)
    return "\n".join(lines).rstrip("\n")


def _is_one_off(args: Object) -> bool:
    """Return True for the call that begins a command in a session of its own."""
    return "cmd" in args and not args.get("workspace_session_id")


def _command_notes(reply: Object, command_id: object, tools: OfferedTools) -> list[str]:
    notes: list[str] = []
    end, total = reply.get("end_offset", 0), reply.get("total_lines", 0)
    if reply.get("dropped"):
        notes.append("part of the output was dropped: the transcript is bounded")
    whole = end == total or is_object(reply.get("tail"))
    if not whole and command_id and reply.get("status") != "running":
        notes.append(f"more output: read_command_lines command_session_id={command_id} start_offset={end}")
    if reply.get("leader_exit_code") is not None:
        notes.append(
            f"the command itself ended with exit code {reply['leader_exit_code']}; it waits for "
            f"{compact(reply.get('waiting_on') or [])} (a server that is to run on: "
            f"exec_command with service)"
        )
    if reply.get("left_behind") and reply["left_behind"] != reply.get("waiting_on"):
        notes.append(
            f"still running apart from the command, ended with its session: {compact(reply['left_behind'])}"
        )
    publish = reply.get("publish")
    if is_object(publish) and not reply.get("publish_rejected"):
        notes.append(
            _published(publish) if "revision" in publish or publish.get("published") else _kept(reply)
        )
        notes += notice_lines(publish.get("notices"))
    if reply.get("publish_rejected"):
        rejection = reply.get("publish_rejection")
        notes.append(
            f"NOT PUBLISHED ({reply.get('publish_reject_class')}): the command ran, its changes are kept in "
            f"{reply.get('draft_id') or 'a draft'}"
        )
        if is_object(rejection):
            notes += render_conflicts.rejection(rejection)
        unfinished = reply.get("publish_reject_class") in ("interrupted", "command_failed")
        notes.append(f"next: {reply.get('hint')}" if unfinished else render_conflicts.next_step(reply, tools))
    if reply.get("finalization_failed"):
        notes.append(
            f"closing the session failed: {reply.get('finalization_failure_class')}; its work is kept, see "
            f"{tools.named('list_workspace_sessions')}"
        )
    if reply.get("finalizing"):
        notes.append("the command ended, its changes are being published")
    notes += _service_notes(reply)
    if reply.get("waiting_for_input"):
        notes.append("WAITING FOR INPUT" + (f": {reply['last_line']}" if reply.get("last_line") else ""))
    elif reply.get("status") == "running" and command_id:
        notes.append(
            f"still running; read on with read_command_lines command_session_id={command_id} "
            f"start_offset={end}"
        )
    if reply.get("hint") and not reply.get("publish_rejected"):
        notes.append(f"next: {reply['hint']}")
    return notes


def _service_notes(reply: Object) -> list[str]:
    name = reply.get("service")
    if not name:
        return []
    if reply.get("stopped_by"):
        return [f"service {name} was ended by {reply['stopped_by']}"]
    if reply.get("status") != "running" or "ready" not in reply:
        return [f"service {name}"]
    if not reply["ready"]:
        return [f"service {name} is not ready; read_command_lines with wait_ms waits until it is"]
    address = reply.get("service_url") or reply.get("forward")
    return [f"service {name} is ready" + (f", forwarded at {address}" if address else "")]


def stopped_services(reply: Object) -> str:
    """Line about the services that an operation has ended; empty without any."""
    names = [
        f"{row.get('service')} ({row.get('command_session_id')})"
        for row in rows(reply.get("services_stopped"))
    ]
    return f"\nservices ended with it: {', '.join(names)}" if names else ""


def _kept(reply: Object) -> str:
    work = (
        f"its changes are kept in {reply['draft_id']}" if reply.get("draft_id") else "it had changed nothing"
    )
    return f"NOT PUBLISHED ({reply.get('status')}): {work}"


def _routed(routes: Object) -> str:
    """Numbers of published paths; of the ignored ones only where there are some."""
    source, ignored = routes.get("source_count", 0), routes.get("ignored_count", 0)
    if not ignored:
        return f"{source} path{'s' if source != 1 else ''}"
    return f"{source} source, {ignored} ignored paths" if source else f"{ignored} ignored paths"


def _published(publish: Object) -> str:
    if publish.get("no_op"):
        return "published: nothing had changed"
    revision, routes = publish.get("revision"), publish.get("route_summary")
    version = revision.get("manifest_version") if is_object(revision) else publish.get("manifest_version")
    counts = f" ({_routed(routes)})" if is_object(routes) else ""
    text = f"published as version {version}{counts}"
    if publish.get("dropped"):
        text += (
            f"; left out (sockets, pipes, devices, what a killed process left half done): "
            f"{compact(publish['dropped'])}"
        )
    if publish.get("rewritten"):
        text += f"; {len(publish['rewritten'])} commits have new ids: the branch had moved"
    return text + (
        "; the disk refused the last sync: a power cut may still undo it"
        if publish.get("synced") is False
        else ""
    )


def _file_read(args: Object, reply: Object, call: str = "file_read with") -> str:
    """Text of file_read; `call` begins the call for the next page."""
    if "files" in reply:
        return render_files.several_read(reply, lambda row, call: _file_read(args, row, call))
    if "media_type" in reply:
        return render_files.media_line(reply)
    content, path = str(reply.get("content") or ""), shown_path(reply.get("path"))
    if reply.get("encoding") == "base64":
        first, count = int(reply["offset"]), int(reply["bytes_read"])
        more = (
            f"\n\nmore: {call} offset={reply['next_offset']}" if reply.get("next_offset") is not None else ""
        )
        return (
            f"{path}: bytes {first} to {first + count - 1} of {reply.get('total_bytes')}, "
            f"in base64\n\n{content}{more}"
        )
    start, shown = int(reply.get("start_line") or 1), int(reply.get("num_lines") or 0)
    following = reply.get("next_offset")
    limit = _limit(args, TEXT_LIMIT)
    if len(content) > limit:
        kept = content[:limit]
        if "\n" in kept:
            kept = kept[: kept.rfind("\n")]
            shown = kept.count("\n") + 1
            following = start + shown
        content = kept
    lines = (
        f"{path}: lines {start} to {start + shown - 1} of {reply.get('total_lines')}, "
        f"{reply.get('total_bytes')} bytes"
    )
    if not shown:
        return (
            f"{path}: no lines from {start} on; it has {reply.get('total_lines')} lines, "
            f"{reply.get('total_bytes')} bytes"
        )
    tail = f"\n\nmore: {call} offset={following}" if following is not None else ""
    if reply.get("line_cut_characters"):
        tail = (
            f"\n\n({reply['line_cut_characters']} more characters of this line: read them with a "
            f"command, such as cut -c){tail}"
        )
    return f"{lines}\n\n{content}{tail}"


def _file_search(args: Object, reply: Object) -> str:
    found = rows(reply.get("matches"))
    skipped = reply.get("skipped")
    left_out = (
        ", ".join(f"{count} {why}" for why, count in skipped.items() if count) if is_object(skipped) else ""
    )
    lines = [
        f"{len(found)} matches; {reply.get('files_searched')} files searched"
        + (f", left out: {left_out}" if left_out else "")
    ]
    path: object = None
    for match in found:
        if match.get("path") != path:
            path = match.get("path")
            lines += ["", shown_path(path)]
        lines.append(f"{match.get('line')}: {match.get('text')}")
    if reply.get("next") is not None:
        lines += ["", f"more ({reply.get('stopped')}): call again with cursor={reply['next']}"]
    return "\n".join(lines)


def _file_delete(args: Object, reply: Object) -> str:
    return f"deleted {reply.get('kind')} {shown_path(reply.get('path'))} {render_files.where(args)}"


def _file_move(args: Object, reply: Object) -> str:
    source, target = shown_path(reply.get("from")), shown_path(reply.get("to"))
    return f"moved {reply.get('kind')} {source} to {target} {render_files.where(args)}"


def _file_change(args: Object, reply: Object) -> str:
    verb = {"create": "created", "update": "replaced", "edit": "edited"}.get(
        str(reply.get("type")), str(reply.get("type"))
    )
    where = render_files.where(args)
    text = f"{verb} {shown_path(reply.get('path'))} {where}: {reply.get('bytes_written')} bytes"
    if "replacements" in reply:
        text += f", {reply['replacements']} replacement{'s' if reply['replacements'] != 1 else ''}"
    return text


def _file_list(args: Object, reply: Object) -> str:
    entries, place, by_glob = rows(reply.get("entries")), reply.get("path") or ".", args.get("glob")
    count = f"{len(entries)} {'files' if by_glob else 'entries'}"
    if not entries:
        count = f"no file matches {by_glob}" if by_glob else "empty"
    lines = [f"{shown_path(place)}: {count}", *(_name(entry) for entry in entries)]
    if reply.get("ignored_left_out"):
        lines.append(f"left out, ignored: {reply['ignored_left_out']} (include_ignored=true lists them)")
    if reply.get("unreadable"):
        lines.append(f"unreadable: {reply['unreadable']}")
    if reply.get("truncated"):
        why = f" ({reply['stopped']})" if reply.get("stopped") else ""
        lines.append(f"more{why}: call again with cursor={reply.get('next')}")
    return "\n".join(lines)


def _name(entry: Object) -> str:
    kind = entry.get("kind") or entry.get("type")
    mark = {"directory": "/", "symlink": "@"}.get(str(kind), "")
    return f"{shown_path(entry.get('name') or entry.get('path'))}{mark}" + (
        f"  {entry['size']}" if kind == "file" and "size" in entry else ""
    )


def _sandbox(record: Object) -> str:
    text = f"{record.get('id')}  {record.get('state')}  {record.get('workspace_root')}"
    if record.get("state") == "failed" and record.get("failure"):
        text += f"  ({record['failure']})"
    return text


def _sandboxes(args: Object, reply: Object) -> str:
    if "sandboxes" not in reply:
        return _sandbox(reply) + _record_rest(reply)
    found = rows(reply.get("sandboxes"))
    if not found:
        return "no sandboxes; create one with create_sandbox (image, workspace_root)"
    return "sandbox_id  state  workspace_root\n" + "\n".join(_sandbox(row) for row in found)


def _record_rest(record: Object) -> str:
    rest = {
        key: value
        for key, value in record.items()
        if key not in ("id", "state", "workspace_root") and value is not None
    }
    return ("\n" + compact(rest)) if rest else ""


def _created(args: Object, reply: Object) -> str:
    """Text of a new sandbox, or of several, without what only programs use."""
    found = rows(reply.get("sandboxes")) or [reply]
    lines = ["created; pass the id as sandbox_id", *map(_sandbox, found)]
    if is_object(seen := found[0].get("readable")):
        lines.append(f"its commands can read: {seen.get('files')}")
    return "\n".join(lines)


def _removed(args: Object, reply: Object) -> str:
    """Text of a destroyed sandbox: what was lost with it."""
    lost = reply.get("discarded")
    text = f"{reply.get('id')} is {reply.get('state')} and removed"
    if not is_object(lost):
        return f"{text}; it did not run: what it held that was not published is not known"
    work = lost.get("unpublished")
    if is_object(work) and (work.get("count") or work.get("sessions") or work.get("drafts")):
        text += f"; unpublished work that is gone: {compact(work)}"
    return text


def _images(args: Object, reply: Object) -> str:
    return (
        "\n".join(str(name) for name in reply.get("images") or ())
        or "no local images; pull or build one, or use host where it is offered"
    )


def _session(args: Object, reply: Object) -> str:
    about = [f"session {reply.get('workspace_session_id')}"]
    if reply.get("base_version") is not None:
        about.append(f"base version {reply['base_version']}")
    if reply.get("draft_id"):
        about.append(f"with the work of {reply['draft_id']}")
    reach = {
        "loopback_only": " (loopback only)",
        "no_egress": f" (own address {reply.get('address')}, no way out)",
    }
    if reply.get("network_profile") != "shared":
        about.append(f"network {reply.get('network_profile')}" + reach.get(str(reply.get("network")), ""))
    text = ", ".join(about) + "; pass it as workspace_session_id; publish_workspace_session ends it"
    return "\n".join([text, *render_conflicts.resolved_rows(reply)])


def _publish(args: Object, reply: Object) -> str:
    publish = reply.get("publish")
    text = _published(publish) if is_object(publish) else "published"
    notices = publish.get("notices") if is_object(publish) else None
    return "\n".join(
        [
            f"{text}; session {reply.get('workspace_session_id')} {_after_publish(reply)}",
            *notice_lines(notices),
        ]
    ) + stopped_services(reply)


def _after_publish(reply: Object) -> str:
    """State of the session after a publish: open with keep_open, unless that failed."""
    if reply.get("kept_open"):
        address = f", address {reply['address']}" if reply.get("address") else ""
        return f"stays open, base version {reply.get('base_version')}{address}"
    why = reply.get("not_kept_open")
    return "is closed" + (f", it could not be kept open: {why.get('message')}" if is_object(why) else "")


def _destroyed(args: Object, reply: Object) -> str:
    extra = f"; discarded {compact(reply['discarded'])}" if reply.get("discarded") else ""
    return (
        f"session {reply.get('workspace_session_id')} is gone, {reply.get('evicted_upperdir_bytes')} "
        f"bytes of private changes{extra}{stopped_services(reply)}"
    )


def _table(key: str, columns: Sequence[str], nothing: str) -> Callable[[Object, Object], str]:
    def text_of(args: Object, reply: Object) -> str:
        found = rows(reply.get(key))
        if not found:
            return nothing
        lines = ["  ".join(columns)]
        lines += ["  ".join(_cell(row.get(column)) for column in columns) for row in found]
        if reply.get("next") is not None:
            lines.append(f"more: call again with after={reply['next']}")
        return "\n".join(lines)

    return text_of


_live_sessions = _table(
    "sessions",
    ("workspace_session_id", "state", "base_version", "agent", "upper_bytes", "active_command_session_ids"),
    "no live sessions",
)
_dead_sessions = _table(
    "dead_sessions", ("workspace_session_id", "state", "tries", "agent", "paths", "bytes", "reason"), ""
)


_drafts = _table(
    "drafts", ("draft_id", "base_version", "paths", "bytes", "agent", "reason", "origin"), "no drafts"
)


def _sessions(args: Object, reply: Object) -> str:
    """List live sessions and what runs in them, drafts, dead sessions whose work is not a draft."""
    text = _live_sessions(args, reply)
    running = [row for session in rows(reply.get("sessions")) for row in rows(session.get("commands"))]
    if running:
        text += "\nrunning:\n" + "\n".join(
            "  ".join(_cell(row[key]) for key in ("command_session_id", "service", "command") if row.get(key))
            for row in running
        )
    text += render_checkpoints.listed(rows(reply.get("sessions")))
    if reply.get("drafts"):
        kept = _drafts(args, reply)
        more = int(reply.get("draft_count") or 0) - len(rows(reply.get("drafts")))
        text += f"\ndrafts, work that was not published:\n{kept}" + (f"\nand {more} more" if more > 0 else "")
    dead = _dead_sessions(args, reply)
    return text + (f"\ndead, their work is not a draft:\n{dead}" if dead else "")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ",".join(str(item) for item in items(value)) or "-"  # pyright: ignore[reportUnknownArgumentType]
    return " ".join(str(value).split())[:120] or "-"


def _preview(args: Object, reply: Object) -> str:
    verdict = "would publish" if reply.get("would_publish") else "would be rejected"
    if reply.get("no_op"):
        verdict = "nothing to publish"
    lines = [f"{verdict}; head is version {reply.get('head_version')}"]
    routes = reply.get("route_summary")
    if is_object(routes):
        lines[0] += (
            f"; {routes.get('source_count', 0)} source, {routes.get('ignored_count', 0)} ignored paths"
        )
    if reply.get("conflicts"):
        lines += render_conflicts.rejection(reply)
    lines += notice_lines(reply.get("notices"))
    for key in ("refused", "dropped"):
        if reply.get(key):
            lines.append(f"{key}: {compact(reply[key])}")
    if reply.get("next") is not None:
        lines.append(f"more conflicts: call again with cursor={reply['next']}")
    return "\n".join(lines)


def _blame(args: Object, reply: Object) -> str:
    found = rows(reply.get("ranges"))
    if not found:
        return f"{reply.get('path')} is empty"
    lines = [f"{reply.get('path')}: lines  owner"]
    for row in found:
        first, count = row.get("start_line"), row.get("line_count")
        last = first + count - 1 if isinstance(first, int) and isinstance(count, int) else first
        lines.append(
            f"{first}-{last}  {row.get('owner')}" if first != last else f"{first}  {row.get('owner')}"
        )
    if reply.get("truncated"):
        lines.append(f"more: call again with offset={reply.get('next_offset')}")
    return "\n".join(lines)


def _diff(args: Object, reply: Object) -> str:
    found = rows(reply.get("entries"))
    if not found:
        return "nothing differs"
    lines = [
        f"{row.get('change')}  {row.get('path')}" + ("  (no text)" if row.get("binary") else "")
        for row in found
    ]
    for row in found:
        if row.get("patch"):
            lines.append(str(row["patch"]).rstrip("\n"))
        if row.get("patch_truncated"):
            lines.append(f"(the patch of {row.get('path')} is cut; ask for this path alone)")
    if reply.get("next") is not None:
        lines.append(f"more: call again with cursor={reply['next']}")
    return "\n".join(lines)


def _rolled_back(args: Object, reply: Object) -> str:
    publish = reply.get("publish")
    text = _published(publish) if is_object(publish) else "published"
    return f"the head shows version {reply.get('version')} again: {text}"


def _topmost(paths: object) -> list[str]:
    """Paths without those that are in a directory of the list."""
    shown = [str(path) for path in items(paths)]
    listed = set(shown)
    return [
        path
        for path in shown
        if not any(path[:at] in listed for at, character in enumerate(path) if character == "/")
    ]


_EXPORT_LISTS = {
    "would_conflict": "changed in dest since the copy was made; without on_conflict this is refused",
    "kept_back": "not written, dest keeps its own version of",
    "overwritten": "changed in dest since the copy was made, and overwritten",
    "unsafe": "would run by themselves on this machine; only a person can allow them",
}


def _export(args: Object, reply: Object) -> str:
    if reply.get("format") == "git":
        return git_export(reply)
    told_apart = (
        "layers_exported",
        "live_workspace_sessions",
        "format",
        "hygiene",
        "dry_run",
        "changes",
        "edited",
        *_EXPORT_LISTS,
        "left_out",
        "ignored",
        "created",
        "hint",
    )
    rest = {key: value for key, value in reply.items() if key not in told_apart}
    done = "dry run, nothing was written; an export would have gone" if reply.get("dry_run") else "exported"
    text = (
        f"{done} to {args.get('dest')} as {reply.get('format')}: {compact(rest)}; "
        f"{len(reply.get('layers_exported') or ())} layers"
    )
    if reply.get("live_workspace_sessions"):
        text += (
            f"\nnot included: the private work of open sessions "
            f"{', '.join(map(str, reply['live_workspace_sessions']))}"
        )
    if reply.get("hygiene"):
        text += f"\nfiles that can run code on this machine, look at them first: {compact(reply['hygiene'])}"
    if is_object(ignored := reply.get("ignored")) and ignored.get("files"):
        kept = (
            "not left out for that; ignored=exclude leaves them out"
            if ignored.get("included")
            else "left out"
        )
        text += f"\nignored by .gitignore: {ignored['files']} files, {ignored.get('bytes')} bytes, {kept}"
    if is_object(left := reply.get("left_out")):
        reasons = "; ".join(str(row.get("why")) for row in rows(left.get("why")))
        text += f"\n{left.get('count')} paths left out ({reasons}): {compact(_topmost(left.get('paths')))}"
    for key, said in _EXPORT_LISTS.items():
        if reply.get(key):
            text += f"\n{said}: {compact(reply[key])}"
    if reply.get("edited") and "would_conflict" not in reply:
        text += f"\nnot as the workspace had them, and would be lost: {compact(reply['edited'])}"
    changes = rows(reply.get("changes"))
    lines = [text, *(f"{row.get('action')}  {row.get('path')}" for row in changes)]
    count = reply.get("change_count")
    if isinstance(count, int) and count > len(changes):
        lines.append(f"and {count - len(changes)} more")
    if reply.get("created"):
        lines.append(f"note: {reply.get('hint')}")
    return "\n".join(lines)


_COMMANDS = frozenset(
    {
        "exec_command",
        "write_command_stdin",
        "read_command_lines",
        "wait_command",
        "signal_command",
        "close_stdin",
    }
)
_TEXTS: dict[str, Callable[[Object, Object], str]] = {
    "create_sandbox": _created,
    "destroy_sandbox": _removed,
    "list_sandboxes": _sandboxes,
    "inspect_sandbox": _sandboxes,
    "list_docker_images": _images,
    "export_changes": _export,
    "file_read": _file_read,
    "file_write": _file_change,
    "file_edit": _file_change,
    "file_list": _file_list,
    "file_search": _file_search,
    "file_delete": _file_delete,
    "file_move": _file_move,
    "apply_patch": render_files.patched,
    "file_blame": _blame,
    "diff_session": render_files.session_diff,
    "diff_draft": _diff,
    "diff_versions": _diff,
    "rollback_to": _rolled_back,
    "list_versions": _table(
        "versions", ("version", "owner", "agent", "paths", "pinned", "head"), "no versions"
    ),
    "create_workspace_session": _session,
    "publish_workspace_session": _publish,
    "destroy_workspace_session": _destroyed,
    "preview_publish": _preview,
    "rebase_workspace_session": lambda _, reply: render_conflicts.resolved(reply) + stopped_services(reply),
    "checkpoint_session": lambda _, reply: render_checkpoints.made(_, reply) + stopped_services(reply),
    "restore_session": lambda _, reply: render_checkpoints.restored(_, reply) + stopped_services(reply),
    "list_workspace_sessions": _sessions,
    "list_commands": _table(
        "commands",
        ("command_session_id", "status", "exit_code", "workspace_session_id", "service", "command"),
        "no commands",
    ),
    "list_drafts": _drafts,
}
