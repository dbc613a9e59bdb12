"""Questions before a call that would lose work, through real clients of both eras and a scripted gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import mcp.types as types
import pytest
from mcp import Client
from mcp.client import ClientRequestContext
from mcp.client.client import ConnectMode
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitResult

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_mcp.gateway_client.aio import GatewayRequest
from eos_mcp.mcp import app, confirm, tools
from eos_mcp.mcp.server_options import SANDBOX, ServerOptions
from tests.eos_mcp.scripted_gateway import Called, ScriptedGateway, shown

LEGACY: ConnectMode = "legacy"
MODERN: ConnectMode = "2026-07-28"
both = pytest.mark.parametrize("mode", [LEGACY, MODERN])

RECORD = {"id": "eos-1", "workspace_root": "/p", "state": "ready"}
CLEAN: dict[str, Any] = {"layers": 2, "sessions": [], "drafts": [], "unpublished": {"sessions": []}}
LOSS: dict[str, Any] = {
    **CLEAN,
    "unexported": {"newest_version": 7, "exported_version": 5},
    "drafts": ["draft-1"],
    "unpublished": {"sessions": ["s1"], "paths": ["a\n- nothing is lost", "b"], "count": 2},
}
Answer = Callable[[str], ElicitResult]


def accept(choice: str) -> Answer:
    return lambda _text: ElicitResult(action="accept", content={confirm.KEY: choice})


class Sandbox(ScriptedGateway):
    """A gateway with one sandbox; `states`: what each dry run of its destruction says in turn."""

    def __init__(self, *states: Mapping[str, Any] | None) -> None:
        super().__init__()
        self.states = list(states)
        self.destroyed = 0

    async def perform(self, request: GatewayRequest) -> dict[str, Any]:
        assert request.op == "destroy_sandbox"
        if request.args.get("dry_run"):
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            return {**RECORD, "dry_run": True, **({} if state is None else {"discarded": state})}
        self.destroyed += 1
        return {**RECORD, "state": "stopped"}


class Export(ScriptedGateway):
    """A gateway whose export meets edited files."""

    def __init__(self) -> None:
        super().__init__()
        self.conflicts = [{"path": "a", "differs": "edited"}]
        self.written: list[str] = []

    async def perform(self, request: GatewayRequest) -> dict[str, Any]:
        args = request.args
        assert request.op == "export_changes"
        if not args.get("dry_run") and args.get("on_conflict", "fail") != "fail":
            self.written.append(args["on_conflict"])
            return {"files_written": 3}
        details = {"dest": args["dest"], "conflicts": self.conflicts, "conflict_count": len(self.conflicts)}
        failure = OperationError(OPERATION_FAILED, "changed there", details, reason="export_conflict")
        return failure.envelope()


def call(
    gateway: ScriptedGateway,
    name: str,
    args: dict[str, Any],
    mode: ConnectMode,
    answer: Answer | None,
    options: ServerOptions | None = None,
) -> tuple[Called, list[str]]:
    """The result, and the questions that the person saw."""
    asked: list[str] = []

    async def elicit(context: ClientRequestContext, params: types.ElicitRequestParams) -> ElicitResult:
        assert answer is not None
        asked.append(params.message)
        return answer(params.message)

    async def go() -> Called:
        server = app.build(options or ServerOptions(roots=("/",)), gateway=gateway).server
        callback = elicit if answer is not None else None
        async with Client(server, mode=mode, elicitation_callback=callback) as client:
            return shown(await client.call_tool(name, args))

    return anyio.run(go), asked


def destroy(
    gateway: ScriptedGateway, mode: ConnectMode, answer: Answer | None, options: ServerOptions | None = None
) -> tuple[Called, list[str]]:
    return call(gateway, "destroy_sandbox", {"sandbox_id": "eos-1"}, mode, answer, options)


def export(
    gateway: ScriptedGateway, mode: ConnectMode, answer: Answer | None, **more: Any
) -> tuple[Called, list[str]]:
    return call(gateway, "export_changes", {"sandbox_id": "eos-1", "dest": "/p", **more}, mode, answer)


@both
def test_a_destroy_that_loses_work_happens_after_a_yes(mode: ConnectMode) -> None:
    gateway = Sandbox(LOSS)
    found, (question,) = destroy(gateway, mode, accept("yes"))
    assert not found.is_error and gateway.destroyed == 1
    assert question.split("\n") == [
        "Destroy sandbox eos-1 (/p)? This deletes for good:",
        "- published versions up to 7: version 5 was exported last",
        "- unpublished work or running commands of 1 sessions: a?- nothing is lost, b",
        "- 1 drafts: draft-1",
    ]


NO_YES: list[tuple[Answer, str]] = [
    (lambda _: ElicitResult(action="decline"), "decline"),
    (lambda _: ElicitResult(action="cancel"), "cancel"),
    (accept("no"), "decline"),
    (accept("novelty"), "decline"),
    (lambda _: ElicitResult(action="accept", content={}), "decline"),
    (lambda _: ElicitResult(action="accept", content={confirm.KEY: True}), "decline"),
]


@both
@pytest.mark.parametrize(("answer", "action"), NO_YES)
def test_without_a_yes_nothing_is_destroyed_and_the_answer_says_it(
    mode: ConnectMode, answer: Answer, action: str
) -> None:
    gateway = Sandbox(LOSS)
    found, _ = destroy(gateway, mode, answer)
    details = found.structure["error"]["details"]
    assert found.is_error and gateway.destroyed == 0
    assert (details["reason"], details["action"]) == ("not_confirmed", action)
    assert "sandbox eos-1 was not destroyed" in found.text


@both
def test_nothing_is_asked_when_nothing_would_be_lost_or_the_client_cannot_ask(mode: ConnectMode) -> None:
    clean = Sandbox(CLEAN)
    _, asked = destroy(clean, mode, accept("no"))
    assert (clean.destroyed, asked) == (1, [])
    mute = Sandbox(LOSS)
    destroy(mute, mode, None)
    assert mute.destroyed == 1
    drop_in = Sandbox(LOSS)
    _, asked = destroy(drop_in, mode, accept("no"), ServerOptions(program=SANDBOX, tool_set="all"))
    assert (drop_in.destroyed, asked) == (1, [])


@both
def test_a_sandbox_that_cannot_say_what_it_has_is_asked_about(mode: ConnectMode) -> None:
    gateway = Sandbox(None)
    _, (question,) = destroy(gateway, mode, accept("no"))
    assert "does not answer" in question
    assert gateway.destroyed == 0


@both
def test_work_that_came_while_the_person_thought_is_asked_about_too(mode: ConnectMode) -> None:
    more = {**LOSS, "drafts": ["draft-1", "draft-2"]}
    gateway = Sandbox(LOSS, more)
    found, asked = destroy(gateway, mode, accept("yes"))
    assert not found.is_error and gateway.destroyed == 1
    assert [text.count("draft-") for text in asked] == [1, 2]


@both
def test_an_export_over_edited_files_does_what_the_person_chooses(mode: ConnectMode) -> None:
    for choice in ("keep", "overwrite"):
        gateway = Export()
        found, (question,) = export(gateway, mode, accept(choice))
        assert not found.is_error, found.text
        assert gateway.written == [choice]
        assert "- a (edited)" in question


@both
def test_an_export_that_the_person_declines_writes_nothing(mode: ConnectMode) -> None:
    gateway = Export()
    found, asked = export(gateway, mode, lambda _: ElicitResult(action="decline"))
    assert found.structure["error"]["details"]["reason"] == "not_confirmed"
    assert "nothing was exported" in found.text
    assert (gateway.written, len(asked)) == ([], 1)


@both
def test_a_model_that_wants_to_overwrite_is_asked_about_where_a_person_can_be(mode: ConnectMode) -> None:
    gateway = Export()
    _, asked = export(gateway, mode, accept("keep"), on_conflict="overwrite")
    assert (gateway.written, len(asked)) == (["keep"], 1)
    alone = Export()
    found, _ = export(alone, mode, None, on_conflict="overwrite")
    assert found.structure["error"]["details"]["reason"] == "for_a_person"
    assert not alone.written


@both
def test_an_export_is_not_asked_about_where_it_loses_nothing(mode: ConnectMode) -> None:
    kept = Export()
    _, asked = export(kept, mode, accept("overwrite"), on_conflict="keep")
    assert (kept.written, asked) == (["keep"], [])
    dry = Export()
    found, asked = export(dry, mode, accept("overwrite"), dry_run=True)
    assert (dry.written, asked) == ([], [])
    assert found.structure["error"]["details"]["reason"] == "export_conflict"


def test_a_question_that_is_not_answered_in_time_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirm, "ANSWER_S", 0.01)
    gateway = Sandbox(LOSS)

    async def elicit(context: ClientRequestContext, params: types.ElicitRequestParams) -> ElicitResult:
        await anyio.sleep_forever()
        raise AssertionError

    async def go() -> Called:
        server = app.build(ServerOptions(), gateway=gateway).server
        async with Client(server, mode=LEGACY, elicitation_callback=elicit) as client:
            return shown(await client.call_tool("destroy_sandbox", {"sandbox_id": "eos-1"}))

    found = anyio.run(go)
    assert found.structure["error"]["details"]["action"] == "timeout"
    assert gateway.destroyed == 0


def test_progress_increases_through_questions_and_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "FIRST_PROGRESS_S", 0.01)
    monkeypatch.setattr(tools, "NEXT_PROGRESS_S", 0.01)
    seen: list[float] = []
    reported = asyncio.Event()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)
        reported.set()

    async def further() -> None:
        """Wait for the next progress: the server's clock has moved on."""
        reported.clear()
        with anyio.fail_after(60.0):
            await reported.wait()

    class Slow(Sandbox):
        async def perform(self, request: GatewayRequest) -> dict[str, Any]:
            await further()
            return await super().perform(request)

    async def elicit(context: ClientRequestContext, params: types.ElicitRequestParams) -> ElicitResult:
        await further()
        return ElicitResult(action="accept", content={confirm.KEY: "yes"})

    async def go() -> Called:
        server = app.build(ServerOptions(), gateway=Slow(LOSS)).server
        async with Client(server, mode=LEGACY, elicitation_callback=elicit) as client:
            args = {"sandbox_id": "eos-1"}
            return shown(await client.call_tool("destroy_sandbox", args, progress_callback=progress))

    assert not anyio.run(go).is_error
    assert len(seen) >= 4 and seen == sorted(set(seen)), seen


def repeated(change: Callable[[types.InputRequiredResult], dict[str, Any]], **arguments: str) -> Any:
    """The answer of a call that is repeated with a yes, and with a state that the test changed."""
    gateway = Sandbox(LOSS)

    async def go() -> Any:
        async def elicit(context: ClientRequestContext, params: types.ElicitRequestParams) -> ElicitResult:
            raise AssertionError

        server = app.build(ServerOptions(), gateway=gateway).server
        async with Client(server, mode=MODERN, elicitation_callback=elicit) as client:
            send: Callable[..., Awaitable[Any]] = client.session.call_tool
            name, args = "destroy_sandbox", {"sandbox_id": "eos-1"}
            first = await send(name, args, allow_input_required=True)
            assert isinstance(first, types.InputRequiredResult)
            yes = {confirm.KEY: ElicitResult(action="accept", content={confirm.KEY: "yes"})}
            more: dict[str, Any] = {"input_responses": yes, **change(first)}
            try:
                return await send(name, {**args, **arguments}, allow_input_required=True, **more)
            except MCPError as error:
                return error

    found = anyio.run(go)
    assert gateway.destroyed == 0
    return found


def test_an_answer_without_a_state_is_none() -> None:
    assert isinstance(repeated(lambda first: {}), types.InputRequiredResult)


FORGED: list[Callable[[str], str]] = [
    lambda _: "",
    lambda _: "9" * 12 + ".00.00",
    lambda _: "é.é.é",
    lambda state: "1" + state,
    lambda state: state[:-1],
    lambda state: state + "-TAMPERED",
]


@pytest.mark.parametrize("change", FORGED)
def test_a_state_that_this_server_did_not_make_is_refused(change: Callable[[str], str]) -> None:
    found = repeated(lambda first: {"request_state": change(str(first.request_state))})
    assert isinstance(found, MCPError)
    assert (found.error.code, found.error.data) == (-32602, {"reason": "invalid_request_state"})


def test_a_state_counts_for_the_call_that_it_was_made_for() -> None:
    found = repeated(lambda first: {"request_state": first.request_state}, sandbox_id="eos-2")
    assert isinstance(found, MCPError)


def test_a_state_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirm, "ANSWER_S", -10.0)
    found = repeated(lambda first: {"request_state": first.request_state})
    assert isinstance(found, types.InputRequiredResult)
