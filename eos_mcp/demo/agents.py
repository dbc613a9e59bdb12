"""Three scripted agents in one sandbox, each with an MCP server process of its own, all at work at the same
time.

They wait for one another only at two points: all have started from the same version before the first
publishes, and carol ends her command after alice has published. Everything else runs freely: real sessions,
real tests, a real conflict. Where the sandbox has git, alice and carol commit before they publish.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult

from eos_mcp.demo.story import Story

CALL_DEADLINE_S = 60.0
BROKEN = "    printf '%d.%02d\\n' $(($1 / 100)) $(($1 % 100))\n"
FIXED = """\
    sign= n=$1
    if [ "$n" -lt 0 ]; then
        sign=- n=$((-n))
    fi
    printf '%s%d.%02d\\n' "$sign" $((n / 100)) $((n % 100))
"""
CAROLS_LINE = "    printf '%d,%02d\\n' $(($1 / 100)) $(($1 % 100))\n"
RESOLVED_LINE = '    printf \'%s%d%s%02d\\n\' "$sign" $((n / 100)) "${TALLY_POINT:-.}" $((n % 100))\n'
RESOLVED = "".join(RESOLVED_LINE if "printf" in line else line for line in FIXED.splitlines(keepends=True))
MARKERS = ("<<<<<<<", "|||||||", "=======", ">>>>>>>")
ALICES_MESSAGE = "Print the sign of a negative amount once"
BOBS_MESSAGE = "Report the three largest expenses"
CAROLS_MESSAGE = "Take the decimal point from TALLY_POINT"
TOP_REPORT = """\
# report_top FILE: the three largest expenses, largest first.
report_top() {
    bookings "$1" | awk '$2 < 0 { print -$2, $3 }' | sort -rn | head -n 3
}
"""


class ToolRefused(Exception):
    """An error result of a tool call, with `kind` and `details` of its envelope."""

    def __init__(self, tool: str, error: Mapping[str, Any]) -> None:
        super().__init__(f"{tool}: {error.get('message')}")
        self.kind, self.details = str(error.get("kind")), dict(error.get("details") or {})


class ScriptedAgent:
    """One agent: an MCP client, the sandbox that it works in, and its name in the output."""

    def __init__(self, name: str, client: Client, sandbox_id: str, story: Story) -> None:
        self.name, self.client, self.sandbox_id, self.story = name, client, sandbox_id, story

    def say(self, text: str, *more: str) -> None:
        self.story.say(self.name, text, *more)

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool; return the structured result. Raises ToolRefused on an error result."""
        return await call(self.client, tool, sandbox_id=self.sandbox_id, **arguments)


async def call(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """Call a tool over MCP; return the structured result, which equals the text's JSON. Raises ToolRefused on
    an error result.
    """
    return structured(tool, await client.call_tool(tool, arguments, read_timeout_seconds=CALL_DEADLINE_S))


def structured(tool: str, result: CallToolResult) -> dict[str, Any]:
    """Return the structured content of a result. Raises ToolRefused on an error result."""
    found: Any = result.structured_content
    if not isinstance(found, dict):
        raise ToolRefused(
            tool, {"kind": "protocol_error", "message": f"no structured content: {result.content!r}"}
        )
    value = cast("dict[str, Any]", found)
    if result.is_error or "error" in value:
        raise ToolRefused(tool, value.get("error") or {"message": json.dumps(value)})
    return value


@asynccontextmanager
async def connected(server: StdioServerParameters) -> AsyncGenerator[Client]:
    """Connect an MCP client to a new server process."""
    async with Client(server, read_timeout_seconds=CALL_DEADLINE_S) as client:
        yield client


class DemoStage:
    """The two points at which the agents wait for one another."""

    def __init__(self) -> None:
        self.started = {"alice": anyio.Event(), "bob": anyio.Event(), "carol": anyio.Event()}
        self.alice_published = anyio.Event()

    async def all_started(self, who: str) -> None:
        self.started[who].set()
        for event in self.started.values():
            await event.wait()


def tail(output: str, lines: int = 3) -> list[str]:
    return output.rstrip("\n").split("\n")[-lines:]


def failures(output: str) -> list[str]:
    return [line for line in output.split("\n") if line.startswith("FAIL")]


async def commit(me: ScriptedAgent, session: str, subject: str) -> None:
    """Commit what a session changed where the sandbox has git. Raises ToolRefused if git fails."""
    git = f"git commit -qam '{subject}' && git log -1 --oneline"
    cmd = f"if command -v git >/dev/null; then {git}; fi"
    ran = await me.call("exec_command", workspace_session_id=session, cmd=cmd, yield_time_ms=30_000)
    if ran["exit_code"] != 0:
        raise ToolRefused("exec_command", {"kind": "demo", "message": f"git commit: {ran['output']}"})
    if ran["output"]:
        me.say("commits", *tail(ran["output"], 1))


async def alice(me: ScriptedAgent, stage: DemoStage) -> None:
    """Fix a bug in a private session, run the tests, commit, and publish."""
    session = (await me.call("create_workspace_session", agent=me.name))["workspace_session_id"]
    me.say("opens a workspace session: her own view of the project")
    await stage.all_started(me.name)
    ran = await me.call(
        "exec_command", workspace_session_id=session, cmd="sh tests/run.sh", yield_time_ms=30_000
    )
    me.say(f"runs the tests: exit code {ran['exit_code']}", *failures(ran["output"]))
    await me.call(
        "file_edit",
        workspace_session_id=session,
        path="lib/money.sh",
        edits=[{"old_string": BROKEN, "new_string": FIXED}],
    )
    me.say("edits lib/money.sh: the sign of a negative amount is printed once")
    ran = await me.call(
        "exec_command", workspace_session_id=session, cmd="sh tests/run.sh", yield_time_ms=30_000
    )
    me.say(f"runs the tests again: exit code {ran['exit_code']}", *tail(ran["output"], 1))
    await commit(me, session, ALICES_MESSAGE)
    done = await me.call("publish_workspace_session", workspace_session_id=session, message=ALICES_MESSAGE)
    me.say(f"publishes: version {done['publish']['revision']['manifest_version']}")
    stage.alice_published.set()


async def bob(me: ScriptedAgent, stage: DemoStage) -> None:
    """Add a file with one command and no session: it is published when the command ends."""
    await stage.all_started(me.name)
    script = (
        f"cat > lib/top.sh <<'E'\n{TOP_REPORT}E\nhere=$PWD; . lib/report.sh; . lib/top.sh; report_top "
        f"data/sample.txt"
    )
    ran = await me.call("exec_command", cmd=script, agent=me.name, message=BOBS_MESSAGE, yield_time_ms=30_000)
    me.say(
        "adds lib/top.sh by one command, published when the command ended; it printed", *tail(ran["output"])
    )


async def carol(me: ScriptedAgent, stage: DemoStage) -> None:
    """Change the same line as alice, be refused, and lose nothing."""
    cmd = "sed -i \"s/'%d\\.%02d/'%d,%02d/\" lib/money.sh && grep -n printf lib/money.sh && read answer"
    running = await me.call("exec_command", cmd=cmd, agent=me.name, yield_time_ms=300)
    me.say(
        "starts a command that changes the same line of lib/money.sh: a comma for the point",
        *tail(running["output"], 1),
    )
    await stage.all_started(me.name)
    await stage.alice_published.wait()
    ended = running
    if running["status"] == "running":
        ended = await me.call(
            "write_command_stdin",
            command_session_id=running["command_session_id"],
            stdin="go on\n",
            yield_time_ms=10000,
        )
    if not ended.get("publish_rejected"):
        raise ToolRefused(
            "write_command_stdin", {"kind": "demo", "message": f"a rejection was expected: {ended}"}
        )
    conflict = ended["publish_rejection"]["conflicts"][0]
    draft = ended["draft_id"]
    me.say(
        "her command ends after alice published: the publication is rejected as a whole, her work is kept",
        f"conflict: {conflict['path']} ({conflict['class']}), published first by {who_of(conflict)}",
        f"draft:    {draft}",
    )
    listed = (await me.call("list_drafts"))["drafts"]
    opened = await me.call("create_workspace_session", draft_id=draft, on_conflict="markers", agent=me.name)
    session = opened["workspace_session_id"]
    text = (await me.call("file_read", workspace_session_id=session, path="lib/money.sh"))["content"]
    lines = [line for line in text.splitlines() if "printf" in line or line[:7] in MARKERS]
    me.say(
        f"finds the draft in the list ({len(listed)} there) and opens it on the head, with conflict markers",
        *lines,
    )
    start, end = text.index("<<<<<<<"), text.index("\n", text.index(">>>>>>>")) + 1
    edits = [{"old_string": text[start:end], "new_string": RESOLVED}]
    await me.call("file_edit", workspace_session_id=session, path="lib/money.sh", edits=edits)
    cmd = "sh tests/run.sh && TALLY_POINT=, sh bin/tally balance data/sample.txt"
    ran = await me.call("exec_command", workspace_session_id=session, cmd=cmd, yield_time_ms=30_000)
    me.say(
        f"writes both intentions on top of the head and tests them: exit code {ran['exit_code']}",
        *tail(ran["output"], 2),
    )
    await commit(me, session, CAROLS_MESSAGE)
    done = await me.call("publish_workspace_session", workspace_session_id=session, message=CAROLS_MESSAGE)
    me.say(f"publishes: version {done['publish']['revision']['manifest_version']}; the draft is gone with it")


def who_of(conflict: Mapping[str, Any]) -> str:
    theirs: dict[str, Any] = conflict.get("theirs_layer") or {}
    return str(theirs.get("agent") or theirs.get("owner") or "somebody")


async def play(server: StdioServerParameters, sandbox_id: str, story: Story) -> None:
    """Run the three at once; returns when all are done, raises the first failure of any."""
    stage = DemoStage()
    async with anyio.create_task_group() as group:
        for name, part in (("alice", alice), ("bob", bob), ("carol", carol)):

            async def run(name: str = name, part: Any = part) -> None:
                async with connected(server) as client:
                    await part(ScriptedAgent(name, client, sandbox_id, story), stage)

            group.start_soon(run)
