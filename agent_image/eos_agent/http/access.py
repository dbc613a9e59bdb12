"""Access to the agent's HTTP surface: by the token, or for a browser by a cookie that it got for a ticket.
Checks also the page that a browser's request comes from.

    sandbox-manager-cli forward_url  ->  .../forward/shared/8000/?eos_ticket=T
                                         good for a minute, for that server alone
    agent                            ->  Set-Cookie, and the same address without T
                                         good for twelve hours or until the agent ends
"""

from __future__ import annotations

import hmac
import os
import re
import time
from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import quote

from eos_agent.http.answer import TEXT, HttpRefusal, refused
from eos_agent.http.message import Fields, RequestHead
from eos_agent.wire import proof
from eos_agent.wire.protocol import UNAUTHORIZED

TOKEN_FIELD = "x-eos-token"  # an alternative to Authorization, which may be meant for the forwarded server
COOKIE_S = 12 * 3600
_HTML = "text/html; charset=utf-8"
_OURS = re.compile(r"eos-[0-9a-f]{12}")
"""Names of the cookies of any sandbox: a browser sends the cookies of a host to all its ports."""


class ShownCredentials(NamedTuple):
    """The credentials of a request. secrets: names of fields that are not forwarded. by_field: the request
    has the token in a field, which a browser never adds by itself.
    """

    good: bool
    by_field: bool
    secrets: list[str]


class Access:
    """The access decisions of one start of the agent; cookies of an earlier start are not valid. origins:
    other origins whose pages may send requests to servers.
    """

    def __init__(self, sandbox_id: str, token: str, origins: Collection[str]) -> None:
        self._sandbox_id, self._token = sandbox_id, token.encode()
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._key = os.urandom(32)
        self._cookie = "eos-" + hmac.digest(b"cookie", sandbox_id.encode(), "sha256").hex()[:12]

    def shown(self, request: RequestHead, prefix: str | None) -> ShownCredentials:
        """Find the credentials of a request to `prefix` of /forward, or with None to the agent itself, for
        which cookies are not valid.
        """
        secrets = [TOKEN_FIELD]
        by_field = any(self._is_token(value) for value in request.fields.all(TOKEN_FIELD))
        for value in request.fields.all("authorization"):
            scheme, _, given = value.partition(" ")
            if scheme.lower() == "bearer" and self._is_token(given.strip()):
                secrets.append("authorization")
                by_field = True
        by_cookie = prefix is not None and any(
            proof.stamped(self._key, ("cookie", prefix), value, time.time())
            for name, value in _cookies(request.fields)
            if name == self._cookie
        )
        return ShownCredentials(by_field or by_cookie, by_field, secrets)

    def redeem(self, request: RequestHead, prefix: str) -> HttpRefusal | None:
        """Answer a request that has a ticket: a cookie and a redirect to the address without the ticket. None
        without a ticket.

        Raises:
            Refused: 401, the ticket has expired or is not for this agent and prefix.
        """
        path, _, query = request.target.partition("?")
        pairs = query.split("&") if query else []
        given = [pair.partition("=")[2] for pair in pairs if pair.partition("=")[0] == proof.TICKET_KEY]
        if not given or request.method != "GET":
            return None
        rest = "&".join(pair for pair in pairs if pair.partition("=")[0] != proof.TICKET_KEY)
        where = path + (f"?{rest}" if rest else "")
        if not proof.stamped(self._token, ("ticket", self._sandbox_id, prefix), given[0], time.time()):
            raise unauthorized("the ticket in this address has expired or is for another server")
        until = int(time.time()) + COOKIE_S
        value = proof.stamp(self._key, ("cookie", prefix), until)
        cookie = f"{self._cookie}={value}; Path={prefix}/; Max-Age={COOKIE_S}; HttpOnly; SameSite=Strict"
        fields = (("Set-Cookie", cookie), ("Referrer-Policy", "no-referrer"), ("Cache-Control", "no-store"))
        where = "/" + where.lstrip("/")  # two slashes would begin a host name
        if (
            request.fields.get("sec-fetch-site") == "cross-site"
        ):  # the link was on another site: a browser sends a Strict cookie only with same-site requests
            to = quote(where, safe="/?&=%:+,;@!$'()*~-._").replace("&", "&amp;").replace("'", "&#39;")
            return HttpRefusal(
                200,
                f'<!doctype html><meta http-equiv="refresh" content="0;url={to}">'.encode(),
                _HTML,
                *fields,
            )
        return HttpRefusal(303, b"", TEXT, ("Location", where), *fields)

    def without_cookie(self, request: RequestHead) -> RequestHead:
        """The request without the cookies of sandboxes, for the forwarded server."""
        pairs: list[tuple[str, str]] = []
        for name, value in request.fields.pairs:
            if name.lower() == "cookie" and "eos-" in value:
                parts = [part.strip() for part in value.split(";")]
                value = "; ".join(p for p in parts if p and not _OURS.fullmatch(p.partition("=")[0].strip()))
                if not value:
                    continue
            pairs.append((name, value))
        return request._replace(fields=Fields(pairs))

    def check_page(self, request: RequestHead, shown: ShownCredentials) -> None:
        """Refuse a request of another origin's page to a forwarded server: a browser allows such requests,
        and adds our cookies.

        Raises:
            Refused: 403.
        """
        if shown.by_field:
            return
        host = (request.fields.get("host") or "").lower()
        origins = [origin.lower() for origin in request.fields.all("origin")]
        if any(origin not in self._origins and origin.partition("://")[2] != host for origin in origins):
            raise _other_page(origins[0])
        site = request.fields.get("sec-fetch-site")
        opened = request.method in ("GET", "HEAD") and request.fields.get("sec-fetch-mode") == "navigate"
        if site in ("cross-site", "same-site") and not origins and not opened:
            raise _other_page("another site")

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token)


def unauthorized(message: str) -> HttpRefusal:
    hint = (
        "in a browser: open what `sandbox-manager-cli forward_url` prints; a program sends the token in "
        "X-Eos-Token"
    )
    return refused(
        401, "unauthorized", f"{message}; {hint}", kind=UNAUTHORIZED, extra=(("WWW-Authenticate", "Bearer"),)
    )


def _other_page(whose: str) -> HttpRefusal:
    message = (
        f"a page of {whose[:200]} may not send requests to this server; daemon.http.forward.origins "
        f"lists those that may"
    )
    return refused(403, "other_origin", message)


def _cookies(fields: Fields) -> list[tuple[str, str]]:
    pairs = [part.strip().partition("=") for value in fields.all("cookie") for part in value.split(";")]
    return [(name, value) for name, _, value in pairs]
