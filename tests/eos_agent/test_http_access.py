"""Browsers at the agent's HTTP port: a ticket becomes a cookie for one server; pages of other origins send
nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from eos_agent.wire import proof
from tests.eos_agent.agent_process import TOKEN
from tests.eos_agent.raw_http import HELLO, ask, reason, request, server, status
from tests.eos_agent.web_server import web

Case = Callable[[int, int, list[bytes]], Awaitable[None]]


def run(folder: str, case: Case, *, repeat: int = 1, says: bytes = HELLO, **daemon: object) -> None:
    """`case` with the port of an agent that wants its token, that of a server behind it, which `says` one
    thing, and the heads that the server got.
    """
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(says)

    async def whole() -> None:
        async with server(serve) as behind:
            for _ in range(repeat):
                async with web(folder, **{"auth": "token", **daemon}) as (_, port):
                    await case(port, behind, heard)

    asyncio.run(whole())


def ticket(
    behind: int, *, prefix: str = "", lasts_s: int = 60, sandbox: str = "eos-test", token: str = TOKEN
) -> str:
    return proof.ticket(token, sandbox, prefix or f"/forward/shared/{behind}", int(time.time()) + lasts_s)


def field(answer: bytes, name: str) -> str:
    lines = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    return next(line.partition(": ")[2] for line in lines if line.lower().startswith(name.lower() + ":"))


async def cookie(port: int, behind: int) -> str:
    shown = await ask(port, request(f"/forward/shared/{behind}/a?x=1&eos_ticket={ticket(behind)}&y=2"))
    assert status(shown) == 303 and field(shown, "Location") == f"/forward/shared/{behind}/a?x=1&y=2"
    assert field(shown, "Referrer-Policy") == "no-referrer"
    value, *rest = field(shown, "Set-Cookie").split("; ")
    assert {f"Path=/forward/shared/{behind}/", "HttpOnly", "SameSite=Strict"} <= set(rest)
    return value


def test_a_ticket_becomes_a_cookie_that_opens_that_server_alone_and_goes_no_further(short_dir: str) -> None:
    async def case(port: int, behind: int, heard: list[bytes]) -> None:
        value = await cookie(port, behind)
        assert heard == []  # the server never sees a ticket
        assert (
            status(
                await ask(port, request(f"/forward/shared/{behind}/a", f"Cookie: mine=1; {value}; other=2"))
            )
            == 200
        )
        assert status(await ask(port, request(f"/forward/shared/{behind}/a", f"Cookie: {value}"))) == 200
        assert (
            b"\r\nCookie: mine=1; other=2\r\n" in heard[0]
            and b"Cookie" not in heard[1]
            and b"eos-" not in b"".join(heard)
        )
        for path in (f"/forward/shared/{behind + 1}/", "/forward/isolated=ab/80/"):
            assert status(await ask(port, request(path, f"Cookie: {value}"))) == 401
        listed = request("/files/list", f"Cookie: {value}", "Content-Length: 2", method="POST", body=b"{}")
        assert status(await ask(port, listed)) == 401
        forged = value[:-1] + ("0" if value[-1] != "0" else "1")
        assert status(await ask(port, request(f"/forward/shared/{behind}/", f"Cookie: {forged}"))) == 401

    run(short_dir, case)


def test_a_server_sees_no_cookie_of_another_sandbox_on_the_same_host(short_dir: str) -> None:
    """A browser sends the cookies of one port of a host to all its ports."""

    async def case(port: int, behind: int, heard: list[bytes]) -> None:
        own, other = await cookie(port, behind), f"eos-{'ab' * 6}=1.{'cd' * 32}"
        assert (
            status(
                await ask(
                    port, request(f"/forward/shared/{behind}/a", f"Cookie: {other}; eos-theme=dark; {own}")
                )
            )
            == 200
        )
        assert (
            status(
                await ask(
                    port, request(f"/forward/shared/{behind}/a", f"Cookie: {other}", f"X-Eos-Token: {TOKEN}")
                )
            )
            == 200
        )
        assert b"\r\nCookie: eos-theme=dark\r\n" in heard[0] and b"Cookie" not in heard[1]

    run(short_dir, case)


def test_a_cookie_of_an_earlier_start_is_worth_nothing(short_dir: str) -> None:
    values: list[str] = []

    async def case(port: int, behind: int, heard: list[bytes]) -> None:
        if values:
            assert (
                status(await ask(port, request(f"/forward/shared/{behind}/", f"Cookie: {values[0]}"))) == 401
            )
        values.append(await cookie(port, behind))

    run(short_dir, case, repeat=2)


@pytest.mark.parametrize(
    "wrong",
    ["over", "of another sandbox", "of another token", "for another port", "no ticket at all", "a later end"],
)
def test_a_ticket_that_is_over_or_for_something_else_opens_nothing(short_dir: str, wrong: str) -> None:
    async def case(port: int, behind: int, heard: list[bytes]) -> None:
        given = {
            "over": ticket(behind, lasts_s=-2),
            "of another sandbox": ticket(behind, sandbox="eos-other"),
            "of another token": ticket(behind, token="another"),
            "for another port": ticket(behind + 1),
            "no ticket at all": TOKEN,
            "a later end": f"{int(time.time()) + 9999}.{ticket(behind).partition('.')[2]}",
        }[wrong]
        shown = await ask(port, request(f"/forward/shared/{behind}/?eos_ticket={given}"))
        assert (status(shown), reason(shown)) == (401, "unauthorized") and b"forward_url" in shown
        assert heard == []

    run(short_dir, case)


def test_a_link_on_a_page_of_the_web_sets_the_cookie_and_goes_on_from_here(short_dir: str) -> None:
    async def case(port: int, behind: int, heard: list[bytes]) -> None:
        target = f"/forward/shared/{behind}/a?x=%3C%22&eos_ticket={ticket(behind)}"
        shown = await ask(port, request(target, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"))
        assert (
            status(shown) == 200 and f'content="0;url=/forward/shared/{behind}/a?x=%3C%22"'.encode() in shown
        )
        assert field(shown, "Set-Cookie")

    run(short_dir, case)


def test_a_server_speaks_for_its_own_prefix_alone(short_dir: str) -> None:
    """A service worker of the whole address would see the tickets of all servers behind it, and all that they
    are sent.
    """
    says = HELLO.replace(b"\r\n", b'\r\nService-Worker-Allowed: /\r\nClear-Site-Data: "*"\r\nX-Own: 1\r\n', 1)

    async def case(port: int, behind: int, heard: list[bytes]) -> None:
        shown = await ask(
            port,
            request(f"/forward/shared/{behind}/worker.js", f"X-Eos-Token: {TOKEN}", "Service-Worker: script"),
        )
        assert status(shown) == 200 and field(shown, "X-Own") == "1"
        assert b"service-worker-allowed" not in shown.lower() and b"clear-site-data" not in shown.lower()

    run(short_dir, case, says=says)


PAGES = {
    "its own page": (["Origin: http://127.0.0.1:7001"], "POST", 200),
    "a page of the web": (["Origin: http://page.example"], "POST", 403),
    "a page of another port": (["Origin: http://127.0.0.1:7002"], "POST", 403),
    "a page without an origin": (["Origin: null"], "POST", 403),
    "a websocket of a page": (
        ["Origin: http://page.example", "Connection: Upgrade", "Upgrade: websocket"],
        "GET",
        403,
    ),
    "an image on a page": (["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"], "GET", 403),
    "an image on a page of another port": (
        ["Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors"],
        "GET",
        403,
    ),
    "a link": (["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"], "GET", 200),
    "a page that is configured": (["Origin: https://ide.example"], "POST", 200),
    "no browser": ([], "POST", 200),
}


@pytest.mark.parametrize("page", list(PAGES))
@pytest.mark.parametrize("auth", ["none", "token"])
def test_what_pages_may_send(short_dir: str, auth: str, page: str) -> None:
    fields, method, expected = PAGES[page]

    async def case(port: int, behind: int, heard: list[bytes]) -> None:
        shown = [f"Cookie: {await cookie(port, behind)}"] if auth == "token" else []
        length = ["Content-Length: 0"] if method == "POST" else []
        answer = await ask(
            port, request(f"/forward/shared/{behind}/", *fields, *shown, *length, method=method)
        )
        assert status(answer) == expected and bool(heard) is (expected == 200)
        if expected == 403:
            assert reason(answer) == "other_origin"
            with_token = await ask(
                port,
                request(
                    f"/forward/shared/{behind}/", fields[0], f"X-Eos-Token: {TOKEN}", *length, method=method
                ),
            )
            assert status(with_token) == 200  # which no page knows

    run(short_dir, case, auth=auth, origins=["https://ide.example"])


def test_only_a_sign_of_life_is_given_without_a_token(short_dir: str) -> None:
    async def case(port: int, behind: int, heard: list[bytes]) -> None:
        bare = await ask(port, request("/health"))
        assert status(bare) == 200 and b"observability" not in bare
        assert b"observability" in await ask(port, request("/health", f"X-Eos-Token: {TOKEN}"))
        listed = request("/files/list", "Content-Length: 2", method="POST", body=b"{}")
        assert status(await ask(port, listed)) == 401
        assert status(await ask(port, request(f"/forward/shared/{behind}/"))) == 401

    run(short_dir, case)
