"""The values that the observability operations read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from eos_agent.base.pool import Pool
    from eos_agent.base.settings import Settings
    from eos_agent.base.telemetry import Telemetry
    from eos_agent.observe.diagnostics import SelfDiagnostics
    from eos_agent.observe.sampler import Sampler
    from eos_agent.sessions.commands import Commands
    from eos_agent.sessions.table import Sessions
    from layerstack.store import Store


class ConnectionCount:
    """Number of connections in service: the server counts them, `daemon` reports the number."""

    __slots__ = ("in_use",)

    def __init__(self) -> None:
        self.in_use = 0


class Agent(NamedTuple):
    """The parts of one agent that an observability operation may read. Operations do not change them."""

    settings: Settings
    store: Store
    sessions: Sessions
    commands: Commands
    pool: Pool
    sampler: Sampler
    telemetry: Telemetry
    diagnostics: SelfDiagnostics
    connections: ConnectionCount
