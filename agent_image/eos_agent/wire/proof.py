"""Mutual proof on the line protocol: each end shows that it knows the sandbox's secret, and no byte of that secret is ever sent.

    gateway   {"_prove": {"format": 1, "sandbox_id": S, "nonce": N}}
    agent     {"_prove": {"format": 1, "start": B, "nonce": M, "proof": HMAC(K, "agent" S B N M)}}      K = HMAC(secret, "line" S B)
    gateway   {"_proof": HMAC(K, "gateway" S B N M)}                                                     no answer but to a wrong one

B is drawn once for each start of the agent, so its keys are new with each start; N and M are drawn once for each connection, so nothing of
one connection is of use on another. The names of the two roles keep an answer from being sent back to where it came from. ADR 0039.
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
    """The peer did not prove itself; the message says what it did instead, without anything secret."""


class Expected(NamedTuple):
    """What remains to be shown on one connection: the answer that goes out and the proof that must come in."""

    reply: dict[str, Any]
    proof: str


def new_nonce() -> str:
    return os.urandom(NONCE_BYTES).hex()


def start_key(secret: str, sandbox_id: str, start: str) -> bytes:
    """The key of one start of the agent."""
    return _mac(secret.encode(), "line", sandbox_id, start)


def hello(sandbox_id: str, nonce: str) -> dict[str, Any]:
    """The first line of whoever connects."""
    return {PROVE_KEY: {"format": FORMAT, "sandbox_id": sandbox_id, "nonce": nonce}}


def meet(key: bytes, sandbox_id: str, start: str, asked: object) -> Expected:
    """The agent's answer to a `hello`, and the proof that its sender owes.

    Raises:
        WrongProof: malformed, or meant for another sandbox's agent.
    """
    table = _table(asked)
    nonce = table.get("nonce")
    if table.get("format") != FORMAT or not is_nonce(nonce):
        raise WrongProof(f"{PROVE_KEY} wants format {FORMAT} and a nonce of {NONCE_BYTES} bytes in hex")
    if table.get("sandbox_id") != sandbox_id:
        raise WrongProof("this agent belongs to another sandbox")
    own = new_nonce()
    shown = _mac(key, "agent", sandbox_id, start, nonce, own).hex()
    owed = _mac(key, "gateway", sandbox_id, start, nonce, own).hex()
    return Expected({PROVE_KEY: {"format": FORMAT, "start": start, "nonce": own, "proof": shown}}, owed)


def check(secret: str, sandbox_id: str, nonce: str, reply: Mapping[str, Any]) -> dict[str, Any]:
    """The line that answers an agent which proved itself to the sender of `nonce`.

    Raises:
        WrongProof: it did not: nothing may be sent to it.
    """
    if PROVE_KEY not in reply:
        error = reply.get("error")
        raise WrongProof("another program answers there" if error is None else "it does not prove itself, but answers an error")
    table = _table(reply[PROVE_KEY])
    start, own, shown = table.get("start"), table.get("nonce"), table.get("proof")
    if table.get("format") != FORMAT or not is_nonce(start) or not is_nonce(own) or not is_nonce(shown):
        raise WrongProof("its proof is malformed")
    key = start_key(secret, sandbox_id, start)
    if not hmac.compare_digest(_mac(key, "agent", sandbox_id, start, nonce, own).hex(), shown):
        raise WrongProof("its proof is wrong: it does not know the secret of this sandbox")
    return {PROOF_KEY: _mac(key, "gateway", sandbox_id, start, nonce, own).hex()}


def matches(expected: str, given: object) -> bool:
    """Whether a `_proof` is the one that was owed; compared in constant time."""
    return isinstance(given, str) and hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def stamp(key: bytes, parts: Sequence[str], until: int) -> str:
    """A pass for what `parts` name, good until that second of the epoch for whoever shows it; the key cannot be got from it."""
    return f"{until}.{_mac(key, *parts, until).hex()}"


def stamped(key: bytes, parts: Sequence[str], shown: str, now: float) -> bool:
    """Whether it is such a pass, and not over."""
    found = _STAMP.fullmatch(shown)
    if found is None or int(found[1]) < now:
        return False
    return hmac.compare_digest(stamp(key, parts, int(found[1])), shown)


def ticket(secret: str, sandbox_id: str, prefix: str, until: int) -> str:
    """The pass that opens `prefix` (/forward/shared/PORT, /forward/isolated=SESSION/PORT) of an agent's HTTP port in a browser."""
    return stamp(secret.encode(), ("ticket", sandbox_id, prefix), until)


def is_nonce(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) == 2 * NONCE_BYTES and _HEX.issuperset(value)


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _mac(key: bytes, *parts: object) -> bytes:
    """HMAC-SHA256 over the parts; each is hex, a role or an id, none of which holds a newline."""
    return hmac.digest(key, "\n".join(("eos", *map(str, parts))).encode(), "sha256")
