"""One of the three programs, from command line to exit status; they differ only by their domain."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from eos_agent.wire.operation import Operation
from eos_agent.wire.protocol import CONFIG_ERROR, INVALID_REQUEST, OPERATION_FAILED, OperationError
from eos_mcp import catalog
from eos_mcp.cli import output
from eos_mcp.cli.parse import Parsed, check_request_id, parse, sandbox_from_environment, usage_error
from eos_mcp.gateway_client import sync


def main(domain: str, program: str, argv: Sequence[str] | None) -> int:
    """Call `run` for one of the three programs. For `argv` None the process exits here.

    os._exit, since the interpreter's shutdown unloads module after module, for a tenth of the life of a
    command line. Nothing is lost: output is flushed, and this program has no thread and no exit handler.
    """
    status = run(domain, program, argv)
    if argv is None:
        os._exit(status)
    return status


def run(domain: str, program: str, argv: Sequence[str] | None = None, *, details: bool = False) -> int:
    """Run one command line; return 0 for success, 1 for a refusal or no gateway, 2 for wrong usage or
    configuration.

    Args:
        details: as `eos` does it: errors made here show their `details`, which the three programs keep empty,
            as the contract has it, and an array of strings may be given one by one.
    """
    started = time.monotonic()
    words = sys.argv[1:] if argv is None else argv
    try:
        parsed = parse(words, domain, catalog.DOMAINS[domain], repeated=details)
        if "request_id" in parsed.options:
            check_request_id(parsed.options["request_id"])
        text = help_text(parsed, domain, program)
        if text is not None:
            return output.page(text)
        sandbox_id = selected_sandbox(parsed, domain)
        settings = sync.discover(
            endpoint=parsed.options.get("gateway_endpoint"), token=parsed.options.get("gateway_auth_token")
        )
        operation = known(parsed, domain)
        if parsed.error is not None:
            raise parsed.error
        sandbox_id, args = catalog.build(operation, parsed.args, selector=sandbox_id, bounds=False)
        args = spelled(args)
    except OperationError as error:
        output.own_error(error, details=details)
        return output.USAGE
    try:
        return send(settings, operation, args, sandbox_id, parsed, started)
    except OperationError as error:
        output.own_error(error, details=details)
        return output.USAGE if error.kind == CONFIG_ERROR else output.FAILED
    except KeyboardInterrupt:
        output.own_error(interrupted(operation), details=details)
        return 130


def interrupted(operation: Operation) -> OperationError:
    """Error for Ctrl-C: the request cannot be withdrawn, so its effects continue."""
    where = {
        "exec_command": "; list_commands shows it, signal_command ends it",
        "create_sandbox": "; list_sandboxes shows it",
    }
    on = (
        ""
        if operation.read_only
        else f", but {operation.name} may continue in the gateway{where.get(operation.name, '')}"
    )
    return OperationError(OPERATION_FAILED, f"interrupted{on}", reason="interrupted")


def spelled(args: dict[str, object]) -> dict[str, object]:
    """Encode arguments for JSON: a `path` that is not UTF-8 becomes `path_b64`; elsewhere such bytes are an
    error.

    Raises:
        OperationError: invalid_request.
    """
    odd = [name for name, value in args.items() if _has_surrogates(value)]
    if not odd:
        return args
    path = args.get("path")
    if odd != ["path"] or not isinstance(path, str):
        name = next(name for name in odd if name != "path")
        raise OperationError(INVALID_REQUEST, f"{name} must be UTF-8", {"argument": name}, reason="not_utf8")
    import base64

    others = {name: value for name, value in args.items() if name != "path"}
    return {**others, "path_b64": base64.b64encode(os.fsencode(path)).decode("ascii")}


def _has_surrogates(value: object) -> bool:
    """Return True when text of the command line, also inside an array, was not UTF-8."""
    text = value if isinstance(value, str) else str(value)
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)


def send(
    settings: sync.GatewaySettings,
    operation: Operation,
    args: dict[str, object],
    sandbox_id: str | None,
    parsed: Parsed,
    started: float,
) -> int:
    progress = "progress" in parsed.options
    watched = progress or (
        operation in catalog.DOMAINS["manager"] and sys.stderr.isatty()
    )  # some operations take seconds
    reply = sync.call(
        settings,
        operation.name,
        args,
        sandbox_id=sandbox_id,
        request_id=parsed.options.get("request_id"),
        on_progress=output.progress_printer(started) if watched else None,
    )
    status = output.exit_status(
        reply, propagate="propagate_exit" in parsed.options, fail_on_reject="fail_on_reject" in parsed.options
    )
    if "error" in reply:
        output.envelope(reply)
        return status
    if progress:
        output.write_error(b"[Output]\n")
    output.result(reply, pretty="pretty" in parsed.options, field=parsed.options.get("field"))
    return status


def help_text(parsed: Parsed, domain: str, program: str) -> str | None:
    """Return the requested help page; None when the command line is a call."""
    if "version" in parsed.options:
        from eos_mcp import __version__

        return f"{program} {__version__}"
    asked = "help" in parsed.options
    if parsed.name is not None and parsed.name != "help" and not asked:
        return None
    from eos_mcp.cli import help as pages

    names = list(parsed.words) if parsed.name == "help" else [] if parsed.name is None else [parsed.name]
    if len(names) > 1:
        raise usage_error(f"help takes one operation, not {len(names)}: {' '.join(names)}")
    if not names:
        return pages.catalog_page(domain, program)
    operation = next((o for o in catalog.DOMAINS[domain] if o.name == names[0]), None)
    if operation is None:
        raise pages.unknown_operation(names[0], domain, program)
    return pages.operation_page(operation, program)


def selected_sandbox(parsed: Parsed, domain: str) -> str | None:
    """Return the runtime program's sandbox: flag, then environment. The other programs take it as an argument
    of the operation.
    """
    if domain != "runtime":
        return None
    sandbox_id = parsed.options.get("sandbox_id", sandbox_from_environment())
    if sandbox_id is None or not sandbox_id.strip():
        raise usage_error("--sandbox-id ID is required, as in: sandbox-runtime-cli --sandbox-id ID OPERATION")
    return sandbox_id


def known(parsed: Parsed, domain: str) -> Operation:
    if parsed.operation is not None:
        return parsed.operation
    name = parsed.name or ""
    near = catalog.suggestions(name, domain) if name else []
    from eos_mcp.cli import help as pages

    suffix = pages.elsewhere(name)
    if not near and not suffix:
        near = pages.alike(name, domain)
        suffix = f"; did you mean {near[0]}?" if near else ""
    raise OperationError(
        INVALID_REQUEST,
        f"unknown operation: {name}{suffix}",
        {"operation": name, "suggestions": near},
        reason="unknown_operation",
    )
