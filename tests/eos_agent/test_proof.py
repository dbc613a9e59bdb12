"""The agent's half of the mutual proof, at a started agent: who proves itself needs no token, who does not
gets nothing.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from eos_agent.wire import proof
from eos_agent.wire.protocol import encode, encode_request
from tests.eos_agent.agent_process import TOKEN, WAIT_S, Agent

SANDBOX = "eos-test"


class Dialled:
    """One TCP connection to an agent, line by line."""

    def __init__(self, agent: Agent) -> None:
        with open(agent.settings["endpoint_path"]) as file:
            host, port = json.load(file)["tcp"]
        self.socket = socket.create_connection((host, port), WAIT_S)
        self.reader = self.socket.makefile("rb")

    def send(self, *values: Any) -> None:
        self.socket.sendall(
            b"".join(value if isinstance(value, bytes) else encode(value) for value in values)
        )

    def line(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.reader.readline())
        return value

    def ended(self) -> bool:
        return self.reader.read() == b""

    def meet(self, nonce: str, sandbox: str = SANDBOX) -> dict[str, Any]:
        self.send(proof.hello(sandbox, nonce))
        return self.line()

    def __enter__(self) -> Dialled:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()
        self.socket.close()


def request(op: str = "list_drafts", **more: Any) -> bytes:
    return encode_request(op, {}, request_id="r", sandbox_id=SANDBOX, **more)


def refusal(answer: dict[str, Any]) -> tuple[str, str]:
    return answer["error"]["kind"], answer["error"]["details"]["reason"]


def test_after_both_proofs_requests_need_no_token_and_it_was_never_sent(shared_agent: Agent) -> None:
    with Dialled(shared_agent) as one:
        nonce = proof.new_nonce()
        met = one.meet(nonce)
        one.send(
            proof.check(TOKEN, SANDBOX, nonce, met), request(_keep_alive=True)
        )  # the proof has no answer of its own
        assert "drafts" in one.line()
        one.send(request())
        assert "drafts" in one.line() and one.ended()
        assert TOKEN not in json.dumps(met)


@pytest.mark.parametrize(
    "wrong", ["nothing", "the agent's own", "of another connection", "of another secret", "no text"]
)
def test_without_the_right_proof_nothing_is_answered(shared_agent: Agent, wrong: str) -> None:
    with Dialled(shared_agent) as one, Dialled(shared_agent) as other:
        nonce = proof.new_nonce()
        met = one.meet(nonce)
        right = proof.check(TOKEN, SANDBOX, nonce, met)
        shown: Any = {
            "nothing": b"",
            "the agent's own": {proof.PROOF_KEY: met[proof.PROVE_KEY]["proof"]},
            "of another connection": proof.check(TOKEN, SANDBOX, nonce, other.meet(nonce)),
            "of another secret": {proof.PROOF_KEY: "0" * 64},
            "no text": {proof.PROOF_KEY: [right]},
        }[wrong]
        one.send(shown, request())
        assert refusal(one.line()) == ("unauthorized", "unauthorized" if wrong == "nothing" else "bad_proof")
        one.socket.shutdown(socket.SHUT_WR)
        assert one.ended()


def test_a_proof_is_taken_once_and_only_after_it_was_asked_for(shared_agent: Agent) -> None:
    with Dialled(shared_agent) as one:
        one.send({proof.PROOF_KEY: "0" * 64})
        assert refusal(one.line()) == ("unauthorized", "bad_proof")
    with Dialled(shared_agent) as one:
        one.meet(proof.new_nonce())
        assert refusal(one.meet(proof.new_nonce())) == ("unauthorized", "bad_proof")
    with Dialled(shared_agent) as one:
        nonce = proof.new_nonce()
        right = proof.check(TOKEN, SANDBOX, nonce, one.meet(nonce))
        one.send(right, right)
        assert refusal(one.line()) == ("unauthorized", "bad_proof")


@pytest.mark.parametrize(
    "asked",
    [
        None,
        [],
        {},
        {"format": 2},
        {"nonce": "ab"},
        {"nonce": "G" * 64},
        {"nonce": 5},
        {"sandbox_id": "eos-other"},
        {"sandbox_id": [1]},
    ],
)
def test_a_hello_that_is_none_or_for_another_sandbox_is_refused(shared_agent: Agent, asked: Any) -> None:
    table = (
        {**proof.hello(SANDBOX, proof.new_nonce())[proof.PROVE_KEY], **asked}
        if isinstance(asked, dict) and asked
        else asked
    )
    with Dialled(shared_agent) as one:
        one.send({proof.PROVE_KEY: table})
        assert refusal(one.line()) == ("unauthorized", "bad_proof")


def test_each_start_has_a_key_of_its_own(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent()
    seen: list[dict[str, Any]] = []
    nonce = proof.new_nonce()
    for _ in range(2):
        with Dialled(agent) as one:
            seen.append(one.meet(nonce)[proof.PROVE_KEY])
            proof.check(TOKEN, SANDBOX, nonce, {proof.PROVE_KEY: seen[-1]})
        agent.kill()
        agent.start()
    assert seen[0]["start"] != seen[1]["start"]
    with pytest.raises(proof.WrongProof):
        proof.check(TOKEN, SANDBOX, nonce, {proof.PROVE_KEY: {**seen[0], "start": seen[1]["start"]}})


def test_the_unix_socket_proves_itself_too(shared_agent: Agent) -> None:
    connection = shared_agent.connect()
    try:
        nonce = proof.new_nonce()
        met = connection.line(encode(proof.hello(SANDBOX, nonce)))
        assert proof.PROOF_KEY in proof.check(TOKEN, SANDBOX, nonce, met)
    finally:
        connection.close()
