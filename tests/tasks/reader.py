"""A client that knows of a server what a model knows: definitions, and the text of each result."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Mapping
from typing import Any

import jsonschema
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import Implementation, TextContent

from tests.tasks import advice

CHARACTERS_PER_TOKEN = 4
"""The estimate by which all figures were made."""
PATIENCE_S = 120.0


class Connection:
    """One running MCP server and the client of it; calls block."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self._portal, self._client = portal, client
        self.instructions = client.instructions or ""
        listed = portal.call(client.list_tools)
        self.definitions: dict[str, dict[str, Any]] = {
            tool.name: tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed.tools
        }

    def call(self, tool: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """The text of a result, and True for an error."""
        found = self._portal.call(self._client.call_tool, tool, dict(arguments))
        texts = [block.text for block in found.content if isinstance(block, TextContent)]
        return "\n".join(texts), bool(found.is_error)


@contextlib.contextmanager
def connect(env: Mapping[str, str], *words: str, log: str) -> Generator[Connection]:
    """Start `eos-mcp` with these words over stdio, its standard error in the file `log`."""
    server = StdioServerParameters(command=sys.executable, args=["-m", "eos_mcp", *words], env=dict(env))
    with open(log, "a") as errors, start_blocking_portal() as portal:
        client = Client(
            stdio_client(server, errlog=errors),
            client_info=Implementation(name="script", version="1"),
            read_timeout_seconds=PATIENCE_S,
        )
        with portal.wrap_async_context_manager(client) as opened:
            yield Connection(portal, opened)


class Reader:
    """An agent that uses the tools of a connection; what it may pass as an id it has read in a text.

    `calls` and `tokens` count since the last `begin`.
    """

    def __init__(self, connection: Connection, agent: str = "") -> None:
        self._connection, self._agent = connection, agent
        self._tools = {
            name: list(definition["inputSchema"]["properties"])
            for name, definition in connection.definitions.items()
        }
        self._read = [connection.instructions]
        self._known: dict[str, str] = {}
        self._last, self._last_arguments = "", dict[str, Any]()
        self._free = False
        self.calls, self.characters = 0, 0
        self.failed = False

    @property
    def tokens(self) -> int:
        """Tokens of the texts that were read."""
        return round(self.characters / CHARACTERS_PER_TOKEN)

    def begin(self) -> None:
        """Set the counts to zero."""
        self.calls = self.characters = 0

    @contextlib.contextmanager
    def uncounted(self) -> Generator[None]:
        """Make calls that belong to no task."""
        before, self._free = self._free, True
        try:
            yield
        finally:
            self._free = before

    def takes(self, tool: str, argument: str) -> bool:
        """Return True when a definition names this argument."""
        return argument in self._tools.get(tool, ())

    def tool_for(self, *words: str) -> str:
        """The one tool whose definition has all of these words."""
        found = [
            name
            for name, definition in self._connection.definitions.items()
            if all(word in f"{name} {definition['description']}" for word in words)
        ]
        assert len(found) == 1, f"{' '.join(words)}: the definitions of {found} have these words"
        return found[0]

    def use(self, tool: str, **arguments: Any) -> str:
        """Make one call and return its text. `failed` says whether it is an error.

        Raises:
            AssertionError: a model could not know the tool, an argument or an id.
        """
        assert tool in self._tools, f"no definition names {tool}"
        if self._agent and self.takes(tool, "agent"):
            arguments.setdefault("agent", self._agent)
        schema = self._connection.definitions[tool]["inputSchema"]
        jsonschema.validate(arguments, schema)
        for name in advice.IDS:
            value = arguments.get(name)
            assert value is None or any(value in text for text in self._read), f"{name} {value}: in no text"
        text, self.failed = self._connection.call(tool, arguments)
        self._read.append(text)
        self._known |= advice.ids_in(text)
        self._last, self._last_arguments = tool, arguments
        if not self._free:
            self.calls += 1
            self.characters += len(text)
        return text

    def advised(self, text: str) -> list[advice.Call]:
        """Calls that a text names, complete: ids that it leaves out are the last ones that were read, and a
        page of the same thing has the arguments of the last call.
        """
        return [self._complete(call) for call in advice.calls_in(text, self._tools, self._last)]

    def follow(self, text: str, **more: Any) -> str:
        """Make the first call that a text names, as it stands there; `more` are arguments of the reader's own
        choice.
        """
        named = self.advised(text)
        assert named, f"no next call in: {text}"
        return self.use(named[0].tool, **{**named[0].arguments, **more})

    def id_of(self, name: str) -> str:
        """The last id of this name that was read."""
        return self._known[name]

    def _complete(self, call: advice.Call) -> advice.Call:
        given = {name: value for name, value in call.arguments.items() if value is not None}
        required = self._connection.definitions[call.tool]["inputSchema"]["required"]
        wanted = [*required, *(name for name, value in call.arguments.items() if value is None)]
        if call.tool == self._last and given:
            given = {**self._last_arguments, **given}
        missing = {name: self._known[name] for name in wanted if name not in given and name in self._known}
        return advice.Call(call.tool, {**missing, **given})
