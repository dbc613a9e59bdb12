"""The registry file: whole or not at all, for its owner only, and never guessed at."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.record.registry import AgentEndpoint, Registry, RegistryError, SandboxRecord, SharedBase

PUBLIC = [
    "id",
    "workspace_root",
    "state",
    "activity_revision",
    "daemon",
    "daemon_http",
    "shared_base",
    "resource_profile",
]


def record(sandbox_id: str = "eos-1", **changes: Any) -> SandboxRecord:
    made = SandboxRecord(
        id=sandbox_id,
        workspace_root="/srv/app",
        state="ready",
        daemon=AgentEndpoint(host="127.0.0.1", port=41001),
        daemon_http=AgentEndpoint(host="127.0.0.1", port=41002),
        shared_base=SharedBase(source="/c/x", target="/eos/layer-stack/base", root_hash="ab" * 32),
        provider="docker",
        image="busybox",
        token="secret-of-1",
        created_unix_ms=1,
    )
    return made.but(**changes)


def test_records_are_there_again_after_a_restart_with_their_tokens(tmp_path: Path) -> None:
    path = str(tmp_path / "state" / "registry.json")
    registry = Registry.open(path)
    registry.put(record("eos-2"))
    registry.put(record("eos-1", state="failed"))
    again = Registry.open(path)
    assert [(found.id, found.state, found.token) for found in again] == [
        ("eos-1", "failed", "secret-of-1"),
        ("eos-2", "ready", "secret-of-1"),
    ]
    again.remove("eos-1")
    assert [found.id for found in Registry.open(path)] == ["eos-2"]


def test_the_file_is_readable_by_its_owner_only_and_nothing_else_lies_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "registry.json"
    registry = Registry.open(str(path))
    for _ in range(3):
        registry.put(record())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["registry.json"]
    assert json.loads(path.read_text())["format"] == 1


def test_what_operations_show_has_exactly_the_contracts_keys_and_no_token() -> None:
    shown = record().public()
    assert list(shown) == PUBLIC
    assert "secret-of-1" not in json.dumps(shown)


@pytest.mark.parametrize(
    "content",
    ['{"format": 2, "sandboxes": []}', "[]", "{", '{"format": 1, "sandboxes": [{"id": 1}]}', '{"format": 1}'],
)
def test_a_file_that_is_no_registry_of_ours_is_left_alone_and_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "registry.json"
    path.write_text(content)
    with pytest.raises(RegistryError, match=str(path)):
        Registry.open(str(path))
    assert path.read_text() == content


def test_a_move_from_another_state_is_refused_and_names_both(tmp_path: Path) -> None:
    registry = Registry.open(str(tmp_path / "r.json"))
    registry.put(record(state="stopping"))
    with pytest.raises(OperationError) as caught:
        registry.move("eos-1", ("ready", "failed", "stopped"), "stopping")
    assert caught.value.kind == "invalid_request"
    assert caught.value.details == {
        "sandbox_id": "eos-1",
        "state": "stopping",
        "wanted": "stopping",
        "reason": "wrong_state",
    }
    assert registry.get("eos-1").state == "stopping"


def test_an_unknown_id_is_an_invalid_request_with_the_words_that_scripts_match(tmp_path: Path) -> None:
    with pytest.raises(OperationError) as caught:
        Registry.open(str(tmp_path / "r.json")).get("eos-9")
    assert caught.value.kind == "invalid_request"
    assert caught.value.message == "sandbox not found: eos-9"
    assert caught.value.details["reason"] == "sandbox_not_found"


@pytest.mark.parametrize(
    "damage", [{"token": 7}, {"token": ["secret-of-1"]}, {"created_unix_ms": None}, {"state": "secret-of-1"}]
)
def test_what_is_damaged_is_named_without_any_token(tmp_path: Path, damage: dict[str, Any]) -> None:
    path = tmp_path / "registry.json"
    Registry.open(str(path)).put(record())
    content = json.loads(path.read_text())
    content["sandboxes"] = [{"token": "secret-of-1", **damage}, {**content["sandboxes"][0], **damage}]
    path.write_text(json.dumps(content))
    with pytest.raises(RegistryError) as caught:
        Registry.open(str(path))
    assert str(path) in str(caught.value) and "secret-of-1" not in str(caught.value)
