"""Questions to the person before a call that would lose work, for clients that can ask them.

`destroy_sandbox` is confirmed when work in the sandbox was never exported or published, and an export when
files of its destination were edited since. Without the capability the calls are as they are without this
module. Up to 2025-11-25 the question is a request to the client (elicitation/create) during the call; from
2026-07-28 on the answer of the call is the question, and the client makes the call again with the person's
answer. An answer counts only for the state that was shown: when it changed, the question comes again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import anyio
import mcp.types as types
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError, is_error
from eos_mcp.mcp.json_values import Object, compact, is_object, items, rows
from eos_mcp.mcp.server_options import ServerOptions

CONFIRMED = frozenset({"destroy_sandbox", "export_changes"})
"""Operations about which a person may be asked."""
ANSWER_S = 600.0
"""Time that a person has for an answer."""
ROUNDS_MAX = 3
"""Most questions of one call: the state may change while the person thinks."""
SHOWN = 20
NAME_CHARACTERS = 200
KEY = "confirm"
YES, NO, KEEP, OVERWRITE = "yes", "no", "keep", "overwrite"


class Question(NamedTuple):
    """One question. `choices`: value -> its label; `state`: what would be lost, for which alone the answer
    counts; `not_done`: the beginning of the refusal.
    """

    text: str
    choices: Mapping[str, str]
    state: str
    not_done: str


class InputNeeded(Exception):
    """The answer of the call is a question (from 2026-07-28 on)."""

    def __init__(self, result: types.InputRequiredResult) -> None:
        super().__init__("input required")
        self.result = result


class Ask(NamedTuple):
    """Ask one question of a call. `choice` returns what the person chose.

    Raises:
        OperationError: operation_failed, reason not_confirmed: the person made no choice.
        InputNeeded: the question must become the answer of the call.
    """

    choice: Callable[[Question], Awaitable[str]]
    waits: bool
    """The call waits for the person, and the state may change until then."""


Send = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""More arguments -> the answer of the call with them."""


class Asker:
    """Asks the persons behind the clients of one server."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, ctx: ServerRequestContext[Any], params: types.CallToolRequestParams) -> Ask | None:
        """Return the way to ask during this call; None when its client cannot show a form."""
        capabilities = ctx.session.client_capabilities
        form = capabilities.elicitation if capabilities is not None else None
        if form is None or (form.form is None and form.url is not None):
            return None
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:

            async def by_result(question: Question) -> str:
                return self._answered(question, params)

            return Ask(by_result, waits=False)
        if not ctx.session.can_send_request:
            return None

        async def by_request(question: Question) -> str:
            return await _elicited(ctx, question)

        return Ask(by_request, waits=True)

    def _answered(self, question: Question, params: types.CallToolRequestParams) -> str:
        """The choice in a repeated call; a first call, or one about another state, gets the question.

        Raises:
            MCPError: the request has a state that this server did not make for this call.
        """
        asked = self._asked(params)
        given = (params.input_responses or {}).get(KEY)
        if isinstance(given, types.ElicitResult) and asked == _digest(question):
            return _choice(question, given)
        until = int(time.time() + ANSWER_S)
        request = types.ElicitRequest(params=_form(question, titled=True))
        state = self._state(params, until, _digest(question))
        raise InputNeeded(types.InputRequiredResult(input_requests={KEY: request}, request_state=state))

    def _asked(self, params: types.CallToolRequestParams) -> str | None:
        """Digest of the question that the repeated call answers; None in a first call, and after the time."""
        if params.request_state is None:
            return None
        until, _, rest = params.request_state.partition(".")
        digest = rest.partition(".")[0]
        known = until.isascii() and until.isdecimal() and len(until) < 16
        if not known or not hmac.compare_digest(
            params.request_state.encode(), self._state(params, int(until), digest).encode()
        ):
            raise MCPError(
                types.INVALID_PARAMS,
                "requestState is not the one that this server gave for this call",
                {"reason": "invalid_request_state"},
            )
        return digest if int(until) >= time.time() else None

    def _state(self, params: types.CallToolRequestParams, until: int, digest: str) -> str:
        text = json.dumps([params.name, params.arguments, digest, until], sort_keys=True)
        mac = hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()
        return f"{until}.{digest}.{mac}"


def _digest(question: Question) -> str:
    return hashlib.sha256(question.state.encode("utf-8", "surrogatepass")).hexdigest()


async def _elicited(ctx: ServerRequestContext[Any], question: Question) -> str:
    form = _form(question, titled=False)
    try:
        with anyio.fail_after(ANSWER_S):
            found = await ctx.session.elicit_form(
                form.message, form.requested_schema, related_request_id=ctx.request_id
            )
    except TimeoutError:
        raise _not_confirmed(question, "timeout", f"no answer within {ANSWER_S:.0f} s") from None
    except (MCPError, ValueError) as error:
        raise _not_confirmed(question, "failed", f"the client could not ask: {error}") from None
    return _choice(question, found)


def _form(question: Question, *, titled: bool) -> types.ElicitRequestFormParams:
    """The form of a question. Revisions before 2025-11-25 know enum and enumNames only."""
    choice: dict[str, Any] = {"type": "string", "title": "What to do"}
    if titled:
        choice["oneOf"] = [{"const": value, "title": label} for value, label in question.choices.items()]
    else:
        choice |= {"enum": list(question.choices), "enumNames": list(question.choices.values())}
    schema = {"type": "object", "properties": {KEY: choice}, "required": [KEY]}
    return types.ElicitRequestFormParams(message=question.text, requested_schema=schema)


def _choice(question: Question, found: types.ElicitResult) -> str:
    if found.action != "accept":
        said = "declined" if found.action == "decline" else "dismissed the question"
        raise _not_confirmed(question, found.action, f"the user {said}")
    value = (found.content or {}).get(KEY)
    if not isinstance(value, str) or value not in question.choices:
        raise _not_confirmed(question, "decline", "the answer is none of the choices")
    return value


def _not_confirmed(question: Question, action: str, why: str) -> OperationError:
    hint = "ask the user what they want before you try again; they can also make this call on a command line"
    return OperationError(
        OPERATION_FAILED,
        f"{question.not_done}: {why}",
        {"action": action, "hint": hint},
        reason="not_confirmed",
    )


def wanted(name: str, args: Mapping[str, Any]) -> bool:
    """Return True for a call that may need a confirmation."""
    if args.get("dry_run"):
        return False
    return name == "destroy_sandbox" or (
        name == "export_changes" and args.get("on_conflict", "fail") == "fail"
    )


def proposed(name: str, args: dict[str, Any], options: ServerOptions) -> dict[str, Any]:
    """The arguments of a call whose person can be asked: to overwrite is then the person's choice, and a
    model's wish for it no refusal.
    """
    wish = name == "export_changes" and args.get("on_conflict") == OVERWRITE
    if not wish or args.get("dry_run") or "allow_overwrite" in options.allowed:
        return args
    return {key: value for key, value in args.items() if key != "on_conflict"}


async def performed(name: str, ask: Ask, send: Send) -> dict[str, Any]:
    """Make the call, confirmed where it would lose work.

    Raises:
        OperationError: reason not_confirmed: nothing was done.
        InputNeeded: nothing was done yet.
    """
    return await (_destroyed(ask, send) if name == "destroy_sandbox" else _exported(ask, send))


async def _destroyed(ask: Ask, send: Send) -> dict[str, Any]:
    seen: list[Question] = []
    for _ in range(ROUNDS_MAX):
        found = await send({"dry_run": True})
        if is_error(found):
            return found
        question = of_destroy(found)
        if question is None or (seen and question.state == seen[-1].state):
            return await send({})
        if await ask.choice(question) != YES:
            raise _not_confirmed(question, "decline", "the user chose to keep it")
        if not ask.waits:
            return await send({})
        seen.append(question)
    raise _not_confirmed(seen[-1], "changed", "its work changed during each of the questions")


async def _exported(ask: Ask, send: Send) -> dict[str, Any]:
    seen: list[Question] = []
    choice = ""
    for _ in range(ROUNDS_MAX):
        found = await send({})
        details = found["error"].get("details") if is_error(found) else None
        if not is_object(details) or not _is_about_edits(details):
            return found
        question = of_export(details)
        if seen and question.state == seen[-1].state:
            return await send({"on_conflict": choice})
        choice = await ask.choice(question)
        if not ask.waits:
            return await send({"on_conflict": choice})
        seen.append(question)
    raise _not_confirmed(seen[-1], "changed", "the destination changed during each of the questions")


def _is_about_edits(details: Object) -> bool:
    """Return True for a refusal that the person can resolve; an archive has no files to keep."""
    about = details.get("reason") == "export_conflict" and not details.get("retryable")
    return about and bool(rows(details.get("conflicts")))


def of_destroy(reply: Object) -> Question | None:
    """The question before a destroy, from the answer of its dry run; None when nothing would be lost."""
    found = reply.get("discarded")
    if is_object(found):
        lost, state = _lost(found)
    else:
        lost, state = ["work that its agent, which does not answer, may have"], ["unknown"]
    if not lost:
        return None
    where = f"sandbox {reply.get('id')} ({_line(reply.get('workspace_root'))})"
    return Question(
        "\n".join([f"Destroy {where}? This deletes for good:", *(f"- {line}" for line in lost)]),
        {YES: "Destroy the sandbox", NO: "Keep it"},
        compact([reply.get("id"), *state]),
        f"sandbox {reply.get('id')} was not destroyed",
    )


def _lost(found: Object) -> tuple[list[str], list[object]]:
    """Lines for the person, and the part of them that makes another state: a running command continues to
    write.
    """
    lost: list[str] = []
    newer, unpublished = found.get("unexported"), found.get("unpublished")
    work: Object = unpublished if is_object(unpublished) else {}
    sessions, drafts = items(work.get("sessions")), items(found.get("drafts"))
    dead = rows(work.get("dead_sessions"))
    if is_object(newer):
        exported = newer.get("exported_version")
        since = "nothing was exported yet" if exported is None else f"version {exported} was exported last"
        lost.append(f"published versions up to {newer.get('newest_version')}: {since}")
    if sessions:
        paths = items(work.get("paths"))
        some = f": {_some(paths, int(work.get('count') or 0))}" if paths else ""
        lost.append(f"unpublished work or running commands of {len(sessions)} sessions{some}")
    if drafts:
        lost.append(f"{len(drafts)} drafts: {_some(drafts, len(drafts))}")
    if dead:
        lost.append(f"the work of {len(dead)} dead sessions")
    return lost, [newer if is_object(newer) else None, sessions, drafts, len(dead)]


def of_export(details: Object) -> Question:
    """The question about an export that was refused since files of its destination were edited."""
    found = rows(details.get("conflicts"))
    count = int(details.get("conflict_count") or len(found))
    dest = _line(details.get("dest"))
    lines = [f"- {_line(row.get('path'))} ({_line(row.get('differs'))})" for row in found[:SHOWN]]
    if count > len(lines):
        lines.append(f"- and {count - len(lines)} more")
    head = f"{count} paths in {dest} were changed there since the sandbox had them. The export would replace:"
    return Question(
        "\n".join([head, *lines]),
        {
            KEEP: "Keep these as they are and write all others",
            OVERWRITE: "Overwrite these with the sandbox's: what is there is lost",
        },
        compact([details.get("dest"), count, found]),
        f"nothing was exported to {dest}",
    )


def _some(names: Sequence[object], count: int) -> str:
    shown = ", ".join(_line(name) for name in names[:SHOWN])
    return f"{shown} and {count - SHOWN} more" if count > SHOWN else shown


def _line(text: object) -> str:
    """A name as one short line: it may hold line ends and escape codes, to look like a part of the text."""
    printable = "".join(c if c.isprintable() else "?" for c in str(text))
    return printable if len(printable) <= NAME_CHARACTERS else printable[: NAME_CHARACTERS - 1] + "…"
