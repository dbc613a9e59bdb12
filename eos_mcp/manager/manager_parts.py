"""Protocol with the parts of the manager that creation, diagnosis and the watch over hung agents use, so that
these do not import the manager.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from eos_mcp.agent_client.pool import AgentPool
from eos_mcp.config.load import Config
from eos_mcp.export.operation import Exports
from eos_mcp.imports.importer import Importer
from eos_mcp.providers.provider import Provider
from eos_mcp.record.registry import Registry

Result = TypeVar("Result")


class ManagerParts(Protocol):
    """The parts of a manager that its modules share. `registry` is replaced once, when the manager starts."""

    config: Config
    registry: Registry
    forwarder: AgentPool
    exports: Exports
    imports: Importer
    closing: threading.Event
    """Set when the gateway ends: waits in threads then stop."""
    bases: str
    """Directory of the workspace copies."""
    own: tuple[str, ...]
    """Paths of this gateway that no sandbox may be made over."""

    def tell_neighbours(self) -> None:
        """Let other gateways of this machine hide the gateway's paths from their sessions."""
        ...

    def provider(self, name: str) -> Provider:
        """Return the provider `docker` or `local`.

        Raises:
            OperationError: internal_error, reason backend_off.
        """
        ...

    def provider_for(self, image: str) -> Provider:
        """Return the provider that runs `image`."""
        ...

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call a blocking function in one of the manager's threads."""
        ...
