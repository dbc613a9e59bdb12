"""Parse a command line into globals, operation and arguments. The flags come from the catalog; nothing is
sent, and only the files of `--…-file` are read.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence

from eos_agent.wire.operation import U64_MAX, Argument, Operation
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError

TYPE_CHECKING = False  # importing `typing` is a tenth of a command line's life
if TYPE_CHECKING:
    from typing import Any, NamedTuple
else:
    from eos_agent.wire.namedtuple import NamedTuple

REQUEST_ID_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-")


class Global(NamedTuple):
    name: str
    flags: tuple[str, ...]
    takes_value: bool
    help: str


COMMON = (
    Global(
        "gateway_endpoint",
        ("--gateway-endpoint", "--gateway-socket"),
        True,
        "HOST:PORT, tcp://HOST:PORT, unix:///PATH",
    ),
    Global("gateway_auth_token", ("--gateway-auth-token",), True, "token; better from the token file"),
    Global("pretty", ("--pretty",), False, "indent the result"),
    Global("field", ("--field",), True, "print one field of the result, as in a.b.0"),
    Global("version", ("--version",), False, "print the version"),
    Global("help", ("--help", "-h"), False, "print help, after an operation its page"),
)
GLOBALS: dict[str, tuple[Global, ...]] = {
    "manager": (Global("progress", ("--progress",), False, "progress lines on standard error"), *COMMON),
    "runtime": (
        Global(
            "sandbox_id", ("--sandbox-id",), True, "sandbox to act in; else SANDBOX_ID of the environment"
        ),
        Global("request_id", ("--request-id",), True, "1-128 of [A-Za-z0-9._:-]; becomes trace id and owner"),
        Global("propagate_exit", ("--propagate-exit",), False, "exit with the command's own status"),
        Global("fail_on_reject", ("--fail-on-reject",), False, "exit 3 when a publish was refused"),
        *COMMON,
    ),
    "observability": COMMON,
}


class Parsed(NamedTuple):
    """A command line. `error`: the fault in the operation's own arguments, which the contract reports after
    faults of the configuration.
    """

    options: dict[str, str]  # given globals; a flag without value is "true"
    name: str | None
    words: tuple[str, ...]  # the words after `help`
    operation: Operation | None
    args: dict[str, Any]
    error: OperationError | None


def usage_error(message: str) -> OperationError:
    return OperationError(INVALID_REQUEST, message, reason="usage")


def parse(
    argv: Sequence[str], domain: str, operations: Sequence[Operation], *, repeated: bool = False
) -> Parsed:
    """Parse globals (anywhere but inside a flag's value), the operation, and its flags and positionals.

    Args:
        repeated: an array of strings may be given one by one (`--env A=1 --env B=2`), as `eos` allows.

    Raises:
        OperationError: invalid_request for a global that is given twice or lacks its value, and for an
            unknown option before the operation.
    """
    return _Parser(domain, {operation.name: operation for operation in operations}, repeated).run(list(argv))


class _Parser:
    def __init__(self, domain: str, operations: dict[str, Operation], repeated: bool) -> None:
        self.repeated = repeated
        self.globals = {flag: g for g in GLOBALS[domain] for flag in g.flags}
        self.operations = operations
        self.options: dict[str, str] = {}
        self.name: str | None = None
        self.operation: Operation | None = None
        self.flags: dict[str, tuple[Argument, bool]] = {}
        self.words: list[str] = []
        self.args: dict[str, Any] = {}
        self.seen_own = False
        self.error: OperationError | None = None

    def run(self, argv: list[str]) -> Parsed:
        rest, literal = argv, False
        while rest:
            token, rest = rest[0], rest[1:]
            if literal:
                self.word(token)
            elif token == "--" and self.name is not None:
                literal = True
            elif token in ("-h", "--help") and self.is_help(token):
                self.set_global(self.globals[token], None, [])
            elif token.startswith("--"):
                rest = self.flag(token, rest)
            else:
                self.word(token)
        if self.operation is not None and self.error is None:
            self.require_all(self.operation)
        return Parsed(self.options, self.name, tuple(self.words), self.operation, self.args, self.error)

    def is_help(self, token: str) -> bool:
        """Return False for a `-h` after the operation's own flags while its positional is missing: it is that
        positional.
        """
        return token == "--help" or not (self.seen_own and self.open_positional() is not None)

    def open_positional(self) -> Argument | None:
        if self.operation is None:
            return None
        return next((a for a in self.operation.arguments if a.positional and a.name not in self.args), None)

    def word(self, token: str) -> None:
        if self.name is None:
            self.name = token
            self.operation = self.operations.get(token)
            for argument in () if self.operation is None else self.operation.arguments:
                for flag in (() if argument.positional else (argument.label,)) + argument.aliases:
                    self.flags[flag] = (argument, False)
                if argument.file_flag:
                    self.flags[argument.file_flag] = (argument, True)
            return
        if self.operation is None:
            self.words.append(token)
            return
        positional = self.open_positional()
        if positional is None:
            apart = token in ("true", "false") and any(a.kind == "boolean" for a, _ in self.flags.values())
            how = (
                "; write the value of a flag after `=`, as in --flag=false"
                if apart
                else self.quoted(self.operation)
            )
            self.note(usage_error(f"unexpected positional argument for {self.name}: {_shown(token)}{how}"))
            return
        self.add(positional, token)

    def quoted(self, operation: Operation) -> str:
        """Return a hint for words that the shell split and that belong to one positional."""
        taken = next((a.positional for a in operation.arguments if a.positional), None)
        return f"; {taken} is one word: quote all of it" if taken else ""

    def flag(self, token: str, rest: list[str]) -> list[str]:
        flag, equals, attached = token.partition("=")
        value = attached if equals else None
        if flag in self.flags:
            argument, from_file = self.flags[flag]
            self.seen_own = True
            if argument.kind == "boolean" and not from_file:
                self.add(argument, value if value is not None else "true")
                return rest
            if value is None:
                if not rest:
                    self.note(usage_error(f"{flag} requires a value"))
                    return rest
                value, rest = rest[0], rest[1:]
            self.add(argument, value, file=from_file)
            return rest
        if flag in self.globals:
            return self.set_global(self.globals[flag], value, rest, flag)
        if self.name is None:
            later = any(flag in (a.label, *a.aliases) for o in self.operations.values() for a in o.arguments)
            raise usage_error(
                f"unknown option: {flag}"
                + ("; operations take it: put it after the name of the operation" if later else "")
            )
        if self.operation is not None:
            self.note(
                usage_error(f"unknown option for {self.name}: {flag}{self.instead(self.operation, flag)}")
            )
        return rest

    def instead(self, operation: Operation, flag: str) -> str:
        """Suggest the positional of that name, or the nearest flag, for an unknown `flag`."""
        meant = flag.removeprefix("--").replace("-", "_")
        named = next(
            (a for a in operation.arguments if a.positional and meant in (a.name, a.positional.lower())), None
        )
        if named is not None:
            file = f", or comes from {named.file_flag} PATH" if named.file_flag else ""
            return f"; {named.positional} takes no flag{file}: {operation.name} … {named.positional}"
        import difflib  # in an error only

        near = difflib.get_close_matches(flag, [*self.flags, *self.globals], 1, 0.75)
        starts = [known for known in self.flags if known.startswith(flag) or flag.startswith(known + "-")]
        return (
            f"; did you mean {(near or starts)[0]}?"
            if near or starts
            else f"; `help {operation.name}` lists them"
        )

    def set_global(self, option: Global, value: str | None, rest: list[str], flag: str = "") -> list[str]:
        if option.name == "help":
            self.options["help"] = "true"
            return rest
        if option.name in self.options:
            raise usage_error(f"{flag} was provided more than once")
        if option.takes_value:
            if value is None:
                if not rest:
                    raise usage_error(f"{flag} requires a value")
                value, rest = rest[0], rest[1:]
        elif value is not None:
            raise usage_error(f"{flag} takes no value")
        self.options[option.name] = "true" if value is None else value
        return rest

    def add(self, argument: Argument, text: str, *, file: bool = False) -> None:
        self.seen_own = True
        one_by_one = (
            self.repeated and argument.kind == "json_array" and (argument.items or {}).get("type") == "string"
        )
        if one_by_one and not text.startswith("[") and isinstance(self.args.get(argument.name, []), list):
            self.args.setdefault(argument.name, []).append(text)
            return
        try:
            if argument.name in self.args:
                raise usage_error(f"{argument.label} was provided more than once")
            self.args[argument.name] = value_of(argument, _read(argument, text) if file else text)
        except OperationError as error:
            self.note(error)
            self.args.setdefault(argument.name, None)

    def require_all(self, operation: Operation) -> None:
        for argument in operation.arguments:
            if (
                argument.required
                and argument.name not in self.args
                and f"{argument.name}_b64" not in self.args
                and not self.args.get(argument.beside)
            ):
                also = f" (or {', '.join(argument.aliases)})" if argument.aliases else ""
                self.note(
                    usage_error(f"{argument.label} is required for {operation.name}{also}: {argument.help}")
                )

    def note(self, error: OperationError) -> None:
        if self.error is None:
            self.error = error


def value_of(argument: Argument, text: str) -> Any:
    """Convert the text of an argument to its native value.

    Raises:
        OperationError: invalid_request that names the flag.
    """
    label = argument.label
    if argument.kind == "integer":
        digits = text.lstrip("0") or "0" if text else ""
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 20 or int(digits) > U64_MAX:
            raise usage_error(f"{label} must be an integer from 0 to {U64_MAX}: {_shown(text)}")
        return int(digits)
    if argument.kind == "float":
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise usage_error(f"{label} must be a finite number: {_shown(text)}")
        return number
    if argument.kind == "boolean":
        if text not in ("true", "false"):
            raise usage_error(f"{label} must be true or false: {_shown(text)}")
        return text == "true"
    if argument.kind == "json_array":
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise usage_error(f"{label} must be a JSON array{_as_array(argument, text)}: {error}") from None
        if not isinstance(value, list):
            raise usage_error(f"{label} must be a JSON array{_as_array(argument, text)}")
        return value  # type: ignore[no-any-return, unused-ignore]
    if argument.kind == "json_object":
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise usage_error(f"{label} must be a JSON object: {error}") from None
        if not isinstance(found, dict):
            raise usage_error(f"{label} must be a JSON object")
        return found  # type: ignore[no-any-return, unused-ignore]
    return text


def _as_array(argument: Argument, text: str) -> str:
    """Return a hint that writes the same words as an array, for an array of strings."""
    if (argument.items or {}).get("type") != "string" or text.lstrip()[:1] in ("[", "{"):
        return ""
    written = json.dumps([text[:80]], ensure_ascii=False)
    return (
        f", as in {argument.label} '{written}' (`eos` also takes {argument.label} {_shown(text)}, more "
        f"than once)"
    )


def check_request_id(value: str) -> None:
    if not 1 <= len(value) <= 128 or not REQUEST_ID_CHARACTERS.issuperset(value):
        raise usage_error("--request-id must have 1-128 characters of A-Z a-z 0-9 . _ : -")


def _read(argument: Argument, path: str) -> str:
    """Read the text of a file, or standard input for `-`; UTF-8, since the request is JSON."""
    try:
        if path == "-":
            content = sys.stdin.buffer.read()
        else:
            with open(path, "rb") as file:
                content = file.read()
        return content.decode()
    except OSError as error:
        raise usage_error(f"{argument.file_flag} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise usage_error(f"{argument.file_flag} {path}: not valid UTF-8") from None


def _shown(text: str) -> str:
    return repr(text[:80]) if len(text) > 80 or not text.isprintable() or not text else text


def sandbox_from_environment() -> str | None:
    return os.environ.get("SANDBOX_ID") or None
