"""Mutual proof on the line protocol: each end shows that it knows the sandbox's secret, and no byte of that
secret is ever sent.

    gateway   {"_prove": {"format": 1, "sandbox_id": S, "nonce": N}}
    agent     {"_prove": {"format": 1, "start": B, "nonce": M, "proof": HMAC(K, "agent" S B N M)}}
    gateway   {"_proof": HMAC(K, "gateway" S B N M)}        answered only if wrong

where K = HMAC(secret, "line" S B).
B is a random number of each start of the agent, so each start has its own keys; N and M are random numbers
of each connection, so a proof cannot be replayed on another one. The role in each proof keeps an answer from
being reflected to its sender. ADR 0039.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

PROVE_KEY, PROOF_KEY = "_prove", "_proof"
FORMAT = 1
NONCE_BYTES = 32
TICKET_KEY, TICKET_S = "eos_ticket", 60
_STAMP = re.compile(r"([0-9]{1,12})\.([0-9a-f]{64})")
_HEX = frozenset("0123456789abcdef")


class WrongProof(Exception):
    """The peer sent no valid proof; the message describes its answer, without secrets."""


class Expected(NamedTuple):
    """The agent's answer on one connection, and the proof that it expects next."""

    reply: dict[str, Any]
    proof: str


def new_nonce() -> str:
    return os.urandom(NONCE_BYTES).hex()


def start_key(secret: str, sandbox_id: str, start: str) -> bytes:
    """Derive the key of one start of the agent."""
    return _mac(secret.encode(), "line", sandbox_id, start)


def hello(sandbox_id: str, nonce: str) -> dict[str, Any]:
    """The first line of a client."""
    return {PROVE_KEY: {"format": FORMAT, "sandbox_id": sandbox_id, "nonce": nonce}}


def meet(key: bytes, sandbox_id: str, start: str, asked: object) -> Expected:
    """Build the agent's answer to a `hello`, and the proof to expect from its sender.

    Raises:
        WrongProof: malformed, or meant for another sandbox's agent.
    """
    table = _table(asked)
    nonce = table.get("nonce")
    if table.get("format") != FORMAT or not is_nonce(nonce):
        raise WrongProof(f"{PROVE_KEY} needs format {FORMAT} and a nonce of {NONCE_BYTES} bytes in hex")
    if table.get("sandbox_id") != sandbox_id:
        raise WrongProof("this agent belongs to another sandbox")
    own = new_nonce()
    shown = _mac(key, "agent", sandbox_id, start, nonce, own).hex()
    owed = _mac(key, "gateway", sandbox_id, start, nonce, own).hex()
    return Expected({PROVE_KEY: {"format": FORMAT, "start": start, "nonce": own, "proof": shown}}, owed)


def check(secret: str, sandbox_id: str, nonce: str, reply: Mapping[str, Any]) -> dict[str, Any]:
    """Check the agent's proof for `nonce`; return the line that proves the gateway to it.

    Raises:
        WrongProof: the agent is not authentic: send nothing to it.
    """
    if PROVE_KEY not in reply:
        error = reply.get("error")
        raise WrongProof(
            "another program answers there" if error is None else "it answered an error instead of a proof"
        )
    table = _table(reply[PROVE_KEY])
    start, own, shown = table.get("start"), table.get("nonce"), table.get("proof")
    if table.get("format") != FORMAT or not is_nonce(start) or not is_nonce(own) or not is_nonce(shown):
        raise WrongProof("its proof is malformed")
    key = start_key(secret, sandbox_id, start)
    if not hmac.compare_digest(_mac(key, "agent", sandbox_id, start, nonce, own).hex(), shown):
        raise WrongProof("its proof is wrong: it does not know the secret of this sandbox")
    return {PROOF_KEY: _mac(key, "gateway", sandbox_id, start, nonce, own).hex()}


def matches(expected: str, given: object) -> bool:
    """Compare a `_proof` with the expected one, in constant time."""
    return isinstance(given, str) and hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def stamp(key: bytes, parts: Sequence[str], until: int) -> str:
    """Sign `parts` as a bearer pass, valid until the second `until` of the epoch; the key cannot be derived
    from the pass."""
    return f"{until}.{_mac(key, *parts, until).hex()}"


def stamped(key: bytes, parts: Sequence[str], shown: str, now: float) -> bool:
    """Test that `shown` is a pass for `parts` that has not expired."""
    found = _STAMP.fullmatch(shown)
    if found is None or int(found[1]) < now:
        return False
    return hmac.compare_digest(stamp(key, parts, int(found[1])), shown)


def ticket(secret: str, sandbox_id: str, prefix: str, until: int) -> str:
    """Sign the pass with which a browser may use `prefix` of an agent's HTTP port.

    `prefix` is /forward/shared/PORT or /forward/isolated=SESSION/PORT.
    """
    return stamp(secret.encode(), ("ticket", sandbox_id, prefix), until)


def is_nonce(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) == 2 * NONCE_BYTES and _HEX.issuperset(value)


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _mac(key: bytes, *parts: object) -> bytes:
    """HMAC-SHA256 of the parts joined by newlines; each part is hex, a role or an id, without a newline."""
    return hmac.digest(key, "\n".join(("eos", *map(str, parts))).encode(), "sha256")
