"""Choose paths by a glob, with the rules of a .gitignore line, which are matched in bounded time."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from layerstack.text import gitignore
from layerstack.text.gitignore import IgnoreRules

GLOB_BYTES = 1024
GLOB_ALTERNATIVES = 64


def compile_glob(glob: str | None, top: str) -> Callable[[str], bool]:
    """Compile a glob with the rules of a .gitignore line: `*.py` at any depth, `src/` all below,
    `src/**/*.py` from the workspace root or from `top`.

    `{a,b}` are alternatives, a leading `!` inverts the glob.
    Raises:
        OperationError: invalid_request; the glob is too long, has too many alternatives, or one that cannot
            match (which git ignores silently).
    """
    if not glob:
        return lambda _path: True
    wanted = not glob.startswith("!")
    patterns = list(_alternatives(glob if wanted else glob[1:]))
    try:
        size = len(os.fsencode(glob))
    except UnicodeEncodeError:
        size = GLOB_BYTES + 1
    if size > GLOB_BYTES or len(patterns) > GLOB_ALTERNATIVES or "\n" in glob:
        message = f"glob is not valid Unicode, too long, or has more than {GLOB_ALTERNATIVES} alternatives"
        raise OperationError(INVALID_REQUEST, message, {"argument": "glob"}, reason="invalid_pattern")
    lines = ["\\" + p if p.startswith(("#", "!")) else p for p in patterns]
    nothing = next(
        (
            p
            for p, line in zip(patterns, lines, strict=True)
            if p and gitignore.parse(os.fsencode(line)) is None
        ),
        None,
    )
    if nothing is not None:
        message = (
            f"glob {glob!r} can match no file: {nothing!r} is not a pattern (an unclosed bracket, or "
            f"an empty name)"
        )
        details = {
            "argument": "glob",
            "value": glob,
            "hint": "a backslash makes the next character literal, as in \\[",
        }
        raise OperationError(INVALID_REQUEST, message, details, reason="invalid_pattern")
    text = os.fsencode("\n".join(lines))
    rules = IgnoreRules(lambda path: text if path == ".gitignore" else None)
    skip = len(top) + 1 if top else 0

    def chosen(path: str) -> bool:
        return (rules.ignored(path, False) or (skip > 0 and rules.ignored(path[skip:], False))) is wanted

    return chosen


def _alternatives(glob: str) -> Iterator[str]:
    """Expand braces like a shell; braces without a comma are literal. Yields at most one more than the
    limit."""
    pending, count = [glob], 0
    while pending and count <= GLOB_ALTERNATIVES:
        at = pending.pop(0)
        found = next((m for m in re.finditer(r"\{([^{}]*)\}", at) if "," in m[1]), None)
        if found is None:
            count += 1
            yield at
        elif len(pending) > GLOB_ALTERNATIVES:
            count = GLOB_ALTERNATIVES + 1
            yield from [at] * (GLOB_ALTERNATIVES + 1)
        else:
            pending += [at[: found.start()] + part + at[found.end() :] for part in found[1].split(",")]
