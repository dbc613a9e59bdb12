"""The records of all sandboxes: one file, replaced as a whole after each change, readable by its owner only
(it holds tokens).

{"format": 1, "sandboxes": [record, ...]}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from eos_agent.wire.protocol import INTERNAL_ERROR, INVALID_REQUEST, OperationError, os_error
from eos_mcp.config.log import log
from layerstack.kernel import fsync

FORMAT = 1
State = Literal["creating", "ready", "stopping", "stopped", "failed"]
SESSIONS_UNLIMITED = "unsupported: what live sessions and drafts write is limited by the disk alone"


class RegistryError(Exception):
    """The file has an unknown format or is damaged. The message names the file and the next step."""


class RecordPart(BaseModel):
    """A frozen part of the file. Keys of later versions are ignored."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", strict=True, hide_input_in_errors=True
    )  # inputs hold tokens


class AgentEndpoint(RecordPart):
    host: str
    port: int


class SharedBase(RecordPart):
    source: str
    target: str
    root_hash: str
    readonly: bool = True


class AgentAddress(NamedTuple):
    """The address of an agent and the secret by which it proves itself: an `AgentTarget`."""

    host: str
    port: int
    token: str
    sandbox_id: str
    socket_path: str | None
    proves: bool


class SandboxRecord(RecordPart):
    """One sandbox. The contract has the keys of `public`; the others never leave the manager.

    `provider_data` is for the provider, to find and start the sandbox again.
    """

    id: str
    workspace_root: str
    state: State
    activity_revision: int = 0
    daemon: AgentEndpoint | None = None
    daemon_http: AgentEndpoint | None = None
    shared_base: SharedBase | None = None
    resource_profile: dict[str, Any] | None = None
    quota: dict[str, Any] | None = None
    provider: Literal["docker", "local"]
    image: str
    token: str
    created_unix_ms: int
    provider_data: dict[str, Any] = {}
    warnings: list[str] = []
    """The first entries that the copy of the workspace left out."""

    def public(self) -> dict[str, Any]:
        """Return the record as operations show it: exactly these keys, `quota` when one is configured,
        `warnings` when the copy left entries out.
        """
        shown = {
            "id": self.id,
            "workspace_root": self.workspace_root,
            "state": self.state,
            "activity_revision": self.activity_revision,
            "daemon": self.daemon.model_dump() if self.daemon else None,
            "daemon_http": self.daemon_http.model_dump() if self.daemon_http else None,
            "shared_base": self.shared_base.model_dump() if self.shared_base else None,
            "resource_profile": self.resource_profile,
        }
        more = {"quota": self.quota} if self.quota is not None else {}
        return {**shown, **more, **({"warnings": self.warnings} if self.warnings else {})}

    def target(self) -> AgentAddress | None:
        """Return the address of the agent; None while the agent has none. `proves` is absent from records of
        older agents, which cannot prove themselves.
        """
        if self.daemon is None:
            return None
        path, proves = self.provider_data.get("socket_path"), self.provider_data.get("proves") is True
        return AgentAddress(
            self.daemon.host,
            self.daemon.port,
            self.token,
            self.id,
            None if path is None else str(path),
            proves,
        )

    def but(self, **changes: Any) -> SandboxRecord:
        return self.model_copy(update=changes)


def quota_of(sections: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the `quota` of a record: the configured limits, and the note that only published layers count.
    None without limits.
    """
    layerstack = sections["runtime"]["layerstack"]
    found = {"bytes": layerstack.get("quota_bytes"), "layers": layerstack.get("quota_layers")}
    return (
        None
        if found == {"bytes": None, "layers": None}
        else {**found, "published": "enforced", "sessions": SESSIONS_UNLIMITED}
    )


class Registry:
    """Records by id, in memory and in the file. Used from the manager's event loop only."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._records: dict[str, SandboxRecord] = {}

    @staticmethod
    def open(path: str) -> Registry:
        """Read the registry at `path`; an absent file is an empty registry.

        Raises:
            RegistryError: the file cannot be read, has an unknown format, or is damaged.
        """
        registry = Registry(path)
        try:
            with open(path, "rb") as file:
                value: Any = json.load(file)
        except FileNotFoundError:
            return registry
        except (OSError, ValueError) as error:
            raise RegistryError(
                f"the registry {path} cannot be read ({error}); move it away to start with an empty one"
            ) from error
        table: dict[str, Any] = value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]
        found = table.get("format")
        if found != FORMAT:
            raise RegistryError(
                f"the registry {path} has format {found!r}, this version reads {FORMAT}; move it away to "
                f"start with an empty one"
            )
        try:
            sandboxes: list[Any] = table["sandboxes"]
            for record in map(SandboxRecord.model_validate, sandboxes):
                registry._records[record.id] = record
        except (ValidationError, KeyError, TypeError) as error:
            raise RegistryError(
                f"the registry {path} is damaged ({error}); move it away to start with an empty one"
            ) from error
        return registry

    def __iter__(self) -> Iterator[SandboxRecord]:
        """Iterate in the order of ids."""
        return iter([self._records[key] for key in sorted(self._records)])

    def __len__(self) -> int:
        return len(self._records)

    def find(self, sandbox_id: str) -> SandboxRecord | None:
        return self._records.get(sandbox_id)

    def get(self, sandbox_id: str) -> SandboxRecord:
        """Return the record of `sandbox_id`.

        Raises:
            OperationError: invalid_request, reason sandbox_not_found.
        """
        record = self._records.get(sandbox_id)
        if record is None:
            details = {"sandbox_id": sandbox_id, "hint": "list_sandboxes shows the ids"}
            raise OperationError(
                INVALID_REQUEST, f"sandbox not found: {sandbox_id}", details, reason="sandbox_not_found"
            )
        return record

    def put(self, record: SandboxRecord) -> SandboxRecord:
        """Insert or replace a record. When this returns, a new record and a record that became ready are on
        disk.

        Any other change stays in memory when the disk is full, and is written with the next change: the next
        gateway detects by itself that a sandbox is gone and which ports it has, and destroy_sandbox, which
        frees space, must work on a full disk.

        Raises:
            OperationError: internal_error: a record that must be on disk cannot be written; the table is
                unchanged.
        """
        before = self._records.get(record.id)
        self._records[record.id] = record
        try:
            self.save()
        except OSError as error:
            if before is not None and (record.state != "ready" or before.state == "ready"):
                log("registry_unwritten", sandbox_id=record.id, state=record.state, error=str(error))
                return record
            if before is None:
                del self._records[record.id]
            else:
                self._records[record.id] = before
            refused = os_error(error, kind=INTERNAL_ERROR)
            refused.details["path"] = self.path
            raise OperationError(
                INTERNAL_ERROR,
                f"the registry {self.path} cannot be written: {refused.message}",
                refused.details,
            ) from error
        return record

    def move(self, sandbox_id: str, expected: tuple[State, ...], to: State, **changes: Any) -> SandboxRecord:
        """Set the state of a record if it is one of `expected`.

        Raises:
            OperationError: invalid_request: the sandbox is unknown, or its state is not one of `expected`.
        """
        record = self.get(sandbox_id)
        if record.state not in expected:
            details = {"sandbox_id": sandbox_id, "state": record.state, "wanted": to}
            raise OperationError(
                INVALID_REQUEST,
                f"sandbox {sandbox_id} is {record.state}: it cannot go to {to}",
                details,
                reason="wrong_state",
            )
        return self.put(record.but(state=to, **changes))

    def note(self, record: SandboxRecord) -> None:
        """Replace a record in memory only, for values that may be lost with the process (the activity
        revision).
        """
        self._records[record.id] = record

    def remove(self, sandbox_id: str) -> None:
        """Remove a record; on a full disk only from memory, as in `put`."""
        if self._records.pop(sandbox_id, None) is not None:
            try:
                self.save()
            except OSError as error:
                log("registry_unwritten", sandbox_id=sandbox_id, state="removed", error=str(error))

    def save(self) -> None:
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        value = {"format": FORMAT, "sandboxes": [record.model_dump(mode="json") for record in self]}
        fsync.write_file(self.path, json.dumps(value, indent=1).encode() + b"\n", mode=0o600)
