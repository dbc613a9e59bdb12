"""The types that declare operations: an operation, its arguments, its result fields. Any OS, standard library
only."""

from __future__ import annotations

import math

TYPE_CHECKING = False  # importing `typing` is a tenth of a command line's life
if TYPE_CHECKING:
    from typing import Any, NamedTuple
else:
    from eos_agent.wire.namedtuple import NamedTuple

U64_MAX = 2**64 - 1
ARRAY_DEPTH = 16
KINDS = ("string", "integer", "float", "path", "json_array", "json_object", "boolean")
ANSWER_S = 30.0
DEFAULT_YIELD_MS = 1000
TTL_MIN_S, TTL_MAX_S = 0.1, 30 * 24 * 3600  # ttl_s of a session
NO_BUDGET = math.inf  # an operation without a time limit: the gateway waits for its end


class Argument(NamedTuple):
    """One argument. Bounds are inclusive; `items` is the JSON schema of the members of an array or object;
    `default` has its native JSON type."""

    name: str
    kind: str
    required: bool = False
    help: str = ""
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    items: dict[str, Any] | None = None
    flag: str = ""  # "" = the name in kebab case
    positional: str = ""  # its label, if the argument has no flag; at most one per operation
    aliases: tuple[str, ...] = ()
    value: str = ""  # placeholder of the value in a usage line; "" = by kind
    file_flag: str = ""  # flag of command lines that reads the value from a file; `-` is standard input
    server_default: Any = None  # value in a raw request that lacks the (required) argument
    ours: bool = False
    beside: str = ""  # another argument that may be given instead of a required one
    hidden: bool = False  # accepted, but left out of the tool schemas that a model reads

    @property
    def label(self) -> str:
        """The flag (`--path`), or the label of a positional argument."""
        return self.positional or self.flag or "--" + self.name.replace("_", "-")

    @property
    def value_label(self) -> str:
        """Placeholder of the value in a usage line: `dir|tar`, `N`, `PATH`."""
        by_kind = {
            "integer": "N",
            "float": "N",
            "path": "PATH",
            "json_array": "JSON",
            "json_object": "JSON",
            "boolean": "true|false",
        }
        return self.value or "|".join(self.choices) or by_kind.get(self.kind, "VALUE")


class ResultField(NamedTuple):
    """A key of the result, or `key.inner` for a key of ours in an object (or in each object of an array).

    `type` is a JSON type, alternatives joined by `|`. Any key may be absent.
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

    `waits` is the time allowed beyond the common 30 s: seconds, NO_BUDGET, or the name of the argument
    (`…_ms` or `…_s`) that has it.
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
SESSION = Argument(
    "workspace_session_id", "string", help="Session to act in. Omit for the published head.", value="ID"
)
AGENT = Argument("agent", "string", help="Your name, for others to see.", value="NAME", ours=True)
MESSAGE = Argument("message", "string", help="What the change does.", value="TEXT", ours=True)
PATH = Argument("path", "string", required=True, help="Path in the workspace.", value="PATH")
PATH_B64 = Argument(
    "path_b64",
    "string",
    help="The path's bytes in base64, for a name that is not UTF-8.",
    value="B64",
    ours=True,
    hidden=True,
)
AT_VERSION = Argument(
    "version",
    "integer",
    help="Read this published version instead of the head.",
    minimum=1,
    value="N",
    ours=True,
    hidden=True,
)
CURSOR = Argument("cursor", "string", help="The previous answer's next.", value="CURSOR")
