"""Help pages from the catalog: one for a whole program, one for each operation."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from eos_agent.wire.operation import Argument, Operation
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from eos_mcp import catalog
from eos_mcp.cli.parse import GLOBALS

WIDTH = 110
TITLES = {
    "manager": "Sandbox Manager Help",
    "runtime": "Sandbox Runtime Help",
    "observability": "Sandbox Observability Help",
}


def catalog_page(domain: str, program: str) -> str:
    """Return the page of all operations of a program, by family; a family without operations is left out."""
    members = {operation.name: operation for operation in catalog.DOMAINS[domain]}
    lines = [TITLES[domain], ""]
    for title, summary, names in _groups(domain):
        present = [members[name] for name in names if name in members]
        if not present:
            continue
        lines += [title, f"  {summary}", ""]
        for operation in present:
            lines += [f"  {operation.name}", f"    {operation.summary}", ""]
    lines += ["Global options"]
    lines += [f"  {_global_label(g.flags, g.takes_value):<44}{g.help}" for g in GLOBALS[domain]]
    lines += ["", *_use(domain, program)]
    return "\n".join(lines) + "\n"


def operation_page(operation: Operation, program: str) -> str:
    """Return the page of one operation."""
    family = next((f for f in catalog.FAMILIES[operation.domain] if f.id == operation.family), None)
    lines = [operation.name, ""]
    lines += ["Family", f"  {family.title if family is not None else operation.family}", ""]
    lines += ["Description", *_wrapped(operation.description, 2), ""]
    lines += ["Effect", f"  {'read-only' if operation.read_only else 'changes state'}", ""]
    if operation.when_to_use:
        lines += ["When to use"]
        lines += [
            line for n, point in enumerate(operation.when_to_use, 1) for line in _wrapped(f"{n}. {point}", 2)
        ]
        lines += [""]
    lines += ["Usage", *_wrapped(usage(operation, program), 2, hang=4), ""]
    lines += ["Arguments"]
    if not operation.arguments:
        lines += ["  None"]
    for argument in operation.arguments:
        lines += _argument(argument)
    lines += ["", "Result", *_wrapped(operation.result_example, 2)]
    if operation.promise:
        lines += _wrapped(operation.promise, 2)
    lines += ["", "Examples", *(f"  {example}" for example in operation.examples or ("None",))]
    lines += ["", "Related Operations", *(f"  {name}" for name in operation.related or ("None",))]
    return "\n".join(lines) + "\n"


def usage(operation: Operation, program: str) -> str:
    """Return `PROGRAM OP --flag VALUE [--other N] COMMAND`, positionals last."""
    parts = [program, operation.name]
    if operation.domain == "runtime":
        parts[1:1] = ["--sandbox-id ID"]
    for argument in sorted(operation.arguments, key=lambda a: bool(a.positional)):
        if argument.positional:
            part = argument.positional
        elif argument.kind == "boolean":
            part = f"{argument.label}[=true|false]"
        else:
            part = f"{argument.label} {argument.value_label}"
        parts.append(part if argument.required else f"[{part}]")
    return " ".join(parts)


def unknown_operation(name: str, domain: str, program: str) -> OperationError:
    """Return the multi-line error of `help NAME` for an unknown name."""
    near = catalog.suggestions(name, domain) or alike(name, domain)
    lines = [f"unknown operation: {name}{elsewhere(name)}", ""]
    if near:
        lines += ["Did you mean:", *(f"  {found}" for found in near), ""]
    lines += _use(domain, program)
    return OperationError(
        INVALID_REQUEST,
        "\n".join(lines),
        {"operation": name, "suggestions": near},
        reason="unknown_operation",
    )


def alike(name: str, domain: str) -> list[str]:
    """Return operations of the domain with names close to `name`, nearest first; a hyphen counts as an
    underscore.
    """
    import difflib

    return difflib.get_close_matches(
        name.casefold().replace("-", "_"), [o.name for o in catalog.DOMAINS[domain]], 3, 0.75
    )


def elsewhere(name: str) -> str:
    """Return a suffix that names the program with this operation; empty when no program has it."""
    owner = next(
        (domain for domain, operations in catalog.DOMAINS.items() if any(o.name == name for o in operations)),
        None,
    )
    return "" if owner is None else f"; sandbox-{owner}-cli has it"


def _use(domain: str, program: str) -> list[str]:
    scope = " --sandbox-id ID [--request-id VALUE]" if domain == "runtime" else ""
    return ["Use:", f"  {program}{scope} OPERATION"]


def _groups(domain: str) -> Sequence[tuple[str, str, tuple[str, ...]]]:
    if domain == "manager":
        return catalog.MANAGER_GROUPS
    members = catalog.DOMAINS[domain]
    return [
        (f.title, f.summary, tuple(o.name for o in members if o.family == f.id))
        for f in catalog.FAMILIES[domain]
    ]


def _argument(argument: Argument) -> list[str]:
    lines = [
        f"  {argument.label} {argument.kind} {'required' if argument.required else 'optional'}",
        *_wrapped(argument.help, 4),
    ]
    if argument.choices:
        lines.append(f"    One of: {', '.join(argument.choices)}")
    if argument.aliases:
        lines.append(f"    Also: {', '.join(argument.aliases)}")
    if argument.file_flag:
        lines.append(f"    From a file: {argument.file_flag} PATH (- is standard input)")
    if argument.default is not None and argument.default != "":
        default = str(argument.default).lower() if isinstance(argument.default, bool) else argument.default
        lines.append(f"    Default: {default}")
    return lines


def _global_label(flags: Sequence[str], takes_value: bool) -> str:
    return ", ".join(flags) + (" VALUE" if takes_value else "")


def _wrapped(text: str, indent: int, hang: int | None = None) -> list[str]:
    first, after = " " * indent, " " * (indent if hang is None else hang)
    return (
        textwrap.wrap(
            text,
            WIDTH,
            initial_indent=first,
            subsequent_indent=after,
            break_long_words=False,
            break_on_hyphens=False,
        )
        or []
    )
