"""The internal operation export_stream: the changes of a version as a tar; contract section 10."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, NamedTuple

from eos_agent.base import telemetry
from eos_agent.base.pool import Pool
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError

if TYPE_CHECKING:
    from eos_agent.sessions.table import Sessions
    from layerstack.export.stream import FileRange


FLAGS = ("xattrs", "digests", "earlier", "sparse", "base", "runs", "outputs")


class ExportArguments(NamedTuple):
    """Arguments of export_stream, which the catalog does not list."""

    version: int | None
    """None: the head."""
    offset: int
    """First byte of the tar that is sent."""
    xattrs: bool
    digests: bool
    earlier: bool
    sparse: bool
    base: bool
    runs: bool
    outputs: bool
    ignored: str | None
    """One of `layerstack.export.ignored.TREATMENTS`; None: they are sent like all others, uncounted."""


def arguments_of(args: dict[str, Any]) -> ExportArguments:
    """Check the arguments of a request; a flag is set by `true` alone.

    Raises:
        OperationError: invalid_request, reason wrong_type or bad_argument.
    """
    from layerstack.export.ignored import TREATMENTS

    ignored = args.get("ignored")
    if ignored is not None and ignored not in TREATMENTS:
        message = f"ignored must be one of {', '.join(TREATMENTS)}"
        raise OperationError(INVALID_REQUEST, message, {"argument": "ignored"}, reason="bad_argument")
    flags = {name: args.get(name) is True for name in FLAGS}
    return ExportArguments(_number(args, "version"), _number(args, "offset") or 0, **flags, ignored=ignored)


def _number(args: dict[str, Any], name: str) -> int | None:
    value = args.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise OperationError(
            INVALID_REQUEST, f"{name} must be a number from 0", {"argument": name}, reason="wrong_type"
        )
    return value


async def export_pieces(
    sessions: Sessions, pool: Pool, given: ExportArguments, span: telemetry.Span | telemetry.Nothing
) -> AsyncGenerator[bytes | FileRange]:
    """Yield the tar in pieces, each made in a thread of `pool`. The version has a lease until the end; `span`
    ends then.
    """
    from layerstack.core.layer_times import outputs_of
    from layerstack.export import stream
    from layerstack.export.ignored import IgnoredPaths
    from layerstack.layers import index_cursor

    store = sessions.store
    broken: BaseException | None = None
    try:
        async with contextlib.AsyncExitStack() as held:
            with telemetry.within(span):
                snapshot = await held.enter_async_context(pool.entered(store.lease(given.version)))
            digests = index_cursor.Digests(store.root) if given.digests else None
            try:
                ignored = None
                if given.ignored is not None:
                    ignored = IgnoredPaths(store.routes.rules(snapshot.manifest.version), given.ignored)
                pieces = stream.stream(
                    snapshot,
                    live_workspace_sessions=list(sessions.live),
                    offset=given.offset,
                    xattrs=given.xattrs,
                    digests=digests,
                    earlier=snapshot.earlier if given.earlier else None,
                    holes=given.sparse,
                    base=given.base,
                    root=store.root if given.runs else None,
                    outputs=outputs_of(store, snapshot) if given.outputs else None,
                    ignored=ignored,
                )
                while piece := await pool.run(lambda: next(pieces, b"")):
                    yield piece
            finally:
                if digests is not None:
                    digests.close()
    except BaseException as error:
        broken = error
        raise
    finally:
        span.end(broken)
