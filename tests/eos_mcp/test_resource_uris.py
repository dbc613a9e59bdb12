"""A URI of a resource is read back as it was written, and hostile ones name nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eos_mcp.mcp import resource_uris
from eos_mcp.mcp.resource_uris import FILE, ResourceName, parse

SEGMENT = st.binary(min_size=1, max_size=40).filter(
    lambda part: b"/" not in part and b"\0" not in part and part not in (b".", b"..")
)
PATHS = st.lists(SEGMENT, max_size=5).map(b"/".join)


@given(path=PATHS, page=st.from_regex(r"[A-Za-z0-9_.=-]{1,20}", fullmatch=True) | st.just(""))
def test_each_path_of_bytes_comes_back(path: bytes, page: str) -> None:
    name = ResourceName("eos-1", FILE, "12", path, page)
    assert parse(name.uri()) == name


@pytest.mark.parametrize(
    "name",
    [
        ResourceName("eos-1", resource_uris.VERSIONS),
        ResourceName("eos-1", resource_uris.VERSIONS, page="40"),
        ResourceName("eos-1", resource_uris.VERSION, "3", page="200"),
        ResourceName("eos-1", resource_uris.DRAFTS),
        ResourceName("eos-1", resource_uris.DRAFT, "draft-ab12"),
        ResourceName("eos-1", resource_uris.CONFLICTS, "draft-ab12", page="2"),
        ResourceName("eos-1", resource_uris.COMMAND, "cmd_7", page="1000"),
    ],
)
def test_each_kind_comes_back(name: ResourceName) -> None:
    assert parse(name.uri()) == name


def test_an_escaped_slash_separates_as_clients_fill_in_a_template() -> None:
    assert parse("eos://eos-1/versions/2/files/src%2Fapp.py") == ResourceName(
        "eos-1", FILE, "2", b"src/app.py"
    )


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "file:///etc/passwd",
        "eos://",
        "eos:///versions",
        "eos://eos-1",
        "eos://eos-1/",
        "eos://../versions",
        "eos://eos-1/versions/",
        "eos://eos-1/versions/0",
        "eos://eos-1/versions/-1",
        "eos://eos-1/versions/01",
        "eos://eos-1/versions/٣",
        "eos://eos-1/versions/1e3",
        "eos://eos-1/versions/" + "9" * 16,
        "eos://eos-1/versions/1/files/../../etc/passwd",
        "eos://eos-1/versions/1/files/a/%2e%2e/b",
        "eos://eos-1/versions/1/files/a%2F..%2Fb",
        "eos://eos-1/versions/1/files//etc/passwd",
        "eos://eos-1/versions/1/files/a//b",
        "eos://eos-1/versions/1/files/%00",
        "eos://eos-1/versions/1/files/" + "a" * 256,
        "eos://eos-1/versions/1/files/" + "/".join("a" * 200 for _ in range(30)),
        "eos://eos-1/versions?after",
        "eos://eos-1/versions?cursor=1",
        "eos://eos-1/versions?after=1&after=2",
        "eos://eos-1/versions?",
        "eos://eos-1/versions#x",
        "eos://eos-1/drafts?cursor=1",
        "eos://eos-1/drafts/../drafts",
        "eos://eos-1/drafts/a/conflicts/b",
        "eos://eos-1/commands",
        "eos://eos-1/commands/a b",
        "eos://eos-1/versions/1\n/files/a",
        "eos://user@eos-1/versions",
        "eos://eos-1:80/versions",
        "eos://eos-1/versions/1/files/" + "a/" * 9000,
    ],
)
def test_other_text_names_nothing(uri: str) -> None:
    assert parse(uri) is None
