"""The shapes in which operations are declared: an operation, its arguments, the fields of its result. Pure data, any OS, standard library only."""

from __future__ import annotations

import math

TYPE_CHECKING = False  # importing `typing` is a tenth of a command line's life
if TYPE_CHECKING:
    from typing import Any, NamedTuple
else:
    from eos_agent.wire.namedtuple import NamedTuple

U64_MAX = 2**64 - 1
ARRAY_DEPTH = 16
KINDS = ("string", "integer", "float", "path", "json_array", "boolean")
ANSWER_S = 30.0
DEFAULT_YIELD_MS = 1000
TTL_MIN_S, TTL_MAX_S = 0.1, 30 * 24 * 3600  # of a session
NO_BUDGET = math.inf  # an operation whose length nobody can bound: the gateway waits for it


class Argument(NamedTuple):
    """One argument. Bounds are inclusive; `items` is the JSON schema of an array's members; `default` has its native JSON type."""

    name: str
    kind: str
    required: bool = False
    help: str = ""
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    items: dict[str, Any] | None = None
    flag: str = ""  # "" = the kebab-case name
    positional: str = ""  # the label, for the one argument of an operation that has no flag
    aliases: tuple[str, ...] = ()
    value: str = ""  # what stands for the value in a usage line; "" = by kind
    file_flag: str = ""  # a command line also takes the value from a file, `-` is standard input
    server_default: Any = None  # what a raw request without the (required) argument means
    ours: bool = False
    hidden: bool = False  # no part of a tool's schema, which a model reads in every session; accepted all the same

    @property
    def label(self) -> str:
        """`--path`, or the positional's label."""
        return self.positional or self.flag or "--" + self.name.replace("_", "-")

    @property
    def value_label(self) -> str:
        """`dir|tar`, `N`, `PATH`: the value in a usage line."""
        by_kind = {"integer": "N", "float": "N", "path": "PATH", "json_array": "JSON", "boolean": "true|false"}
        return self.value or "|".join(self.choices) or by_kind.get(self.kind, "VALUE")


class ResultField(NamedTuple):
    """A key of the result, or `key.inner` of an object, or of each object of an array, where one of ours stands beside the contract's.

    `type` is JSON's word for it, alternatives joined by `|`. Any key may be absent.
    """

    name: str
    type: str
    help: str = ""
    ours: bool = False


class Family(NamedTuple):
    id: str
    title: str
    summary: str
    description: str


class Operation(NamedTuple):
    """One operation.

    `waits` is how long it may rightly take beyond the common 30 s: seconds, NO_BUDGET, or the name of the argument (`…_ms` or `…_s`) that says so.
    """

    name: str
    domain: str
    family: str
    summary: str
    description: str
    arguments: tuple[Argument, ...] = ()
    scope: str = "sandbox_required"
    owner: str = "runtime"
    visibility: str = "public"
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False
    related: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    when_to_use: tuple[str, ...] = ()
    result: tuple[ResultField, ...] = ()
    sets: tuple[str, ...] = ()
    ours: bool = False
    waits: float | str = 0
    promise: str = ""
    result_example: str = ""

    def argument(self, name: str) -> Argument | None:
        return next((a for a in self.arguments if a.name == name), None)


AGENT_SETS = ("runtime", "agent", "all")
RUNTIME_SETS = ("runtime", "all")
OBSERVABILITY_SETS = ("observability", "all")

# Arguments that several operations share.
SESSION = Argument("workspace_session_id", "string", help="Session to act in. Omit for the published head.", value="ID")
AGENT = Argument("agent", "string", help="Your name, for others to see.", value="NAME", ours=True)
PATH = Argument("path", "string", required=True, help="Path in the workspace.", value="PATH")
PATH_B64 = Argument(
    "path_b64", "string", help="The path's bytes in base64, for a name that is not UTF-8.", value="B64", ours=True, hidden=True
)
CURSOR = Argument("cursor", "string", help="The answer's next, to go on.", value="CURSOR")
