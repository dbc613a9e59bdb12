"""The arguments of `eos demo`."""

from __future__ import annotations

USAGE = """\
usage: eos demo [--backend auto|docker|local] [--image IMAGE] [--dest DIR] [--keep]

Three scripted agents work at the same time in one sandbox, over MCP: one fixes a bug and runs the tests, one adds a file, one edits the
same line as the first and is rejected without losing anything. Then the result is exported to a directory of this machine, and as
commits to a branch of the repository there.

  --backend  auto (default): Docker when an engine answers, else the local provider; local always works on Linux
  --image    a local image that has /bin/sh; `host` or `rootfs:/abs/dir` for the local provider
  --dest     where the result goes (default: a new temporary directory)
  --keep     leave the sandbox and its gateway running and say how to reach them
"""  # noqa: E501


class DemoOptions:
    def __init__(self) -> None:
        self.backend, self.image, self.dest, self.keep = "auto", "", "", False


def parse(argv: list[str]) -> DemoOptions | None:
    """Parse the options; None for help. Raises ValueError that names the fault."""
    options, at = DemoOptions(), 0
    while at < len(argv):
        flag, _, attached = argv[at].partition("=")
        at += 1
        if flag in ("-h", "--help"):
            return None
        if flag == "--keep":
            options.keep = True
            continue
        if flag not in ("--backend", "--image", "--dest"):
            raise ValueError(f"unknown argument: {flag}")
        if not attached:
            if at == len(argv):
                raise ValueError(f"{flag} needs a value")
            attached = argv[at]
            at += 1
        setattr(options, flag[2:], attached)
    if options.backend not in ("auto", "docker", "local"):
        raise ValueError(f"--backend is auto, docker or local, not {options.backend}")
    return options
