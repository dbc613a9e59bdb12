"""`eos`: one command for people: the three programs, the gateway, the demo, fsck and doctor, client
configuration.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from eos_mcp.cli import output

USAGE = """eos: layer-stacked sandboxes for parallel coding agents

  eos manager OPERATION …         create, list, export, destroy sandboxes   (sandbox-manager-cli)
  eos runtime OPERATION …         commands, files, sessions in a sandbox    (sandbox-runtime-cli)
  eos observability OPERATION …   what a sandbox does and holds             (sandbox-observability-cli)
  eos gateway start|stop|status   the process that holds them; it also starts on demand
  eos demo [options]              three agents work on one project, step by step
  eos fsck SANDBOX|DIR            compare a store with its checksums
  eos doctor                      what works on this machine, and the next step for what does not
  eos mcp-config CLIENT           the snippet for claude-code, cursor, vscode, codex, gemini or zed
  eos --version

Each of the first three explains itself: eos manager help, eos runtime help exec_command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("help", "--help", "-h"):
        return output.page(USAGE)
    verb, rest = words[0], words[1:]
    if verb in ("--version", "version"):
        from eos_mcp import __version__

        return output.page(f"eos {__version__}")
    if verb in ("manager", "runtime", "observability"):
        from eos_mcp.cli.program import run

        return run(verb, f"eos {verb}", rest, details=True)
    if verb in _VERBS:
        return _VERBS[verb](rest)
    output.write_error(f"eos: there is no {verb!r}\n\n{USAGE}".encode("utf-8", "replace"))
    return output.USAGE


def _gateway(words: list[str]) -> int:
    from eos_mcp.cli import gateway_control

    return gateway_control.main(words)


def _demo(words: list[str]) -> int:
    from eos_mcp.demo.main import main

    return main(words)


def _doctor(words: list[str]) -> int:
    from eos_mcp.cli import doctor

    return doctor.main(words)


def _fsck(words: list[str]) -> int:
    from eos_mcp.cli import fsck

    return fsck.main(words)


def _mcp_config(words: list[str]) -> int:
    from eos_mcp.cli import mcp_config

    return mcp_config.main(words)


_VERBS: dict[str, Callable[[list[str]], int]] = {
    "gateway": _gateway,
    "demo": _demo,
    "fsck": _fsck,
    "doctor": _doctor,
    "mcp-config": _mcp_config,
}

if __name__ == "__main__":
    sys.exit(main())
