"""Which of the gateway's variables commands get."""

from __future__ import annotations

import pytest

from eos_mcp.providers import passed_on


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ("http://user:secret@proxy.example:3128", "http://proxy.example:3128"),
        ("http://user:se@cret@proxy.example:3128/", "http://proxy.example:3128/"),
        ("user:secret@proxy.example:3128", "proxy.example:3128"),
        ("socks5h://secret@[::1]:1080", "socks5h://[::1]:1080"),
        ("us er:s://ecret@proxy", "proxy"),
        ("http://proxy.example:3128", "http://proxy.example:3128"),
        ("proxy:3128", "proxy:3128"),
        ("", ""),
    ],
)
def test_a_proxy_is_passed_on_without_user_and_password(
    given: str, passed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, given)
    found = passed_on.variables(own_root=False)
    assert f"HTTPS_PROXY={passed}" in found and f"all_proxy={passed}" in found


def test_no_variable_is_passed_on_that_is_not_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_SECRET_ACCESS_KEY": "x",
        "GITHUB_TOKEN": "x",
        "NO_PROXY": "a@b,localhost",
        "HOME": "/home/me",
    }.items():
        monkeypatch.setenv(name, value)
    found = passed_on.variables(own_root=False)
    assert "NO_PROXY=a@b,localhost" in found and "HOME=/home/me" in found
    assert not [item for item in found if item.endswith("=x")]
    assert not [item for item in passed_on.variables(own_root=True) if item.startswith(("HOME=", "USER="))]
