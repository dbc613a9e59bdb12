"""Write docs/operations.md from the catalog: `python docs/make_operations.py`. A test compares the file with
what this gives.
"""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Iterable, Iterator

from eos_agent.wire.operation import ANSWER_S, Argument, Operation, ResultField
from eos_mcp import catalog

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "operations.md")
PROGRAMS = {
    "manager": "sandbox-manager-cli",
    "runtime": "sandbox-runtime-cli",
    "observability": "sandbox-observability-cli",
}
HEAD = """\
# Operations

<!-- made by docs/make_operations.py from the catalog: change that, not this page -->

The command-line programs, the MCP tools, their help and the checks of arguments all use one catalog, and so does
this page. `help NAME` of a program shows the same with examples. **+** marks an addition to the interface of
the reference (`gateway.results: contract` drops such result keys). Any key of a result may be absent. Errors:
[protocol.md](protocol.md#errors).
"""  # noqa: E501


def page() -> str:
    """The whole page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield (
        "\n\n".join(
            part if part.startswith(("#", "<!--")) else _prose(part.replace("\n", " "))
            for part in HEAD.split("\n\n")
        )
        + "\n"
    )
    yield "| operation | summary | MCP sets | effect |"
    yield "|---|---|---|---|"
    for operations in catalog.DOMAINS.values():
        for operation in operations:
            sets = ", ".join(
                name for name in catalog.SETS if name != "all" and catalog.in_set(operation, name)
            )
            yield (
                f"| [{operation.name}](#{operation.name}){_plus(operation.ours)} | "
                f"{_cell(operation.summary)} | {sets} | {_effect(operation)} |"
            )
    shared = _shared_results(operation for operations in catalog.DOMAINS.values() for operation in operations)
    for domain, operations in catalog.DOMAINS.items():
        yield f"\n## {domain.capitalize()} operations\n\n`{PROGRAMS[domain]}`"
        for operation in operations:
            yield from _operation(operation, shared)
    for fields, (anchor, names) in shared.items():
        yield f"\n## {anchor}\n\n" + _prose(f"Returned by {', '.join(names)}.") + "\n"
        yield from _fields(fields)
    yield ""


def _operation(
    operation: Operation, shared: dict[tuple[ResultField, ...], tuple[str, list[str]]]
) -> Iterator[str]:
    yield f"\n### {operation.name}\n"
    yield _prose(operation.description)
    yield f"\nScope: {operation.scope}. {_waits(operation)}"
    if operation.arguments:
        yield "\n| argument | type | | meaning |"
        yield "|---|---|---|---|"
        for argument in operation.arguments:
            name = f"`{argument.name}`{_plus(argument.ours)}"
            yield f"| {name} | {argument.kind} | {_condition(argument)} | {_cell(argument.help)} |"
    if operation.result in shared:
        anchor = shared[operation.result][0]
        yield f"\nResult: [{anchor.lower()}](#{anchor.lower().replace(' ', '-')})."
    elif operation.result:
        yield ""
        yield from _fields(operation.result)


def _fields(fields: tuple[ResultField, ...]) -> Iterator[str]:
    yield "| result | type | meaning |"
    yield "|---|---|---|"
    for field in fields:
        yield f"| `{field.name}`{_plus(field.ours)} | {_cell(field.type)} | {_cell(field.help)} |"


def _shared_results(operations: Iterable[Operation]) -> dict[tuple[ResultField, ...], tuple[str, list[str]]]:
    """Results that several operations have: (title, names of the operations)."""
    users: dict[tuple[ResultField, ...], list[str]] = {}
    for operation in operations:
        users.setdefault(operation.result, []).append(operation.name)
    found = {fields: names for fields, names in users.items() if fields and len(names) > 2}
    return {
        fields: ("Result of a command" if "exit_code" in _names(fields) else f"Result of {names[0]}", names)
        for fields, names in found.items()
    }


def _names(fields: tuple[ResultField, ...]) -> set[str]:
    return {field.name for field in fields}


def _condition(argument: Argument) -> str:
    words = ["required"] if argument.required else []
    if argument.default is not None:
        shown = argument.default if not isinstance(argument.default, bool) else str(argument.default).lower()
        words.append(f"default {shown}")
    if argument.choices:
        words.append("one of " + ", ".join(argument.choices))
    if argument.minimum is not None:
        words.append(f"from {argument.minimum:g}")
    if argument.maximum is not None:
        words.append(f"to {argument.maximum:g}")
    return "; ".join(words)


def _waits(operation: Operation) -> str:
    if isinstance(operation.waits, str):
        return f"The gateway waits `{operation.waits}` and {ANSWER_S:g} s for the answer."
    if operation.waits == math.inf:
        return "The gateway waits without a limit."
    return f"The gateway waits {ANSWER_S + operation.waits:g} s for the answer."


def _effect(operation: Operation) -> str:
    if operation.read_only:
        return "reads"
    return "destroys" if operation.destructive else "changes"


def _prose(text: str) -> str:
    """Paragraphs in lines of at most 110 characters."""
    return "\n".join(
        textwrap.fill(line, 110, break_long_words=False, break_on_hyphens=False) for line in text.split("\n")
    )


def _plus(ours: bool) -> str:
    return " **+**" if ours else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page())
