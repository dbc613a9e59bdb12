"""Identity of the server: name, title, version and the instructions of each tool set. Standard library
only.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from eos_mcp import __version__
from eos_mcp.mcp.server_options import EOS, ServerOptions

# Milliseconds that a client may cache a list or a discovery answer, which never change in one process.
CACHE_TTL_MS = 3_600_000
CACHE_SCOPE: Final[Literal["public"]] = "public"


class ServerIdentity(NamedTuple):
    """Fields of a handshake answer that describe the server."""

    name: str
    title: str
    version: str
    instructions: str


def identity(options: ServerOptions) -> ServerIdentity:
    """Identity for this command line."""
    title = "eos sandboxes" if options.program == EOS else "EphemeralOS Sandbox MCP"
    text = INSTRUCTIONS[options.tool_set]
    if options.program != EOS:  # without the operations of ours
        text = text.replace(_RESOLVE, _RESOLVE_BY_HAND)
    if options.sandbox_id is not None:
        text += f"\nCalls without sandbox_id go to sandbox {options.sandbox_id}."
    return ServerIdentity(options.program, title, __version__, text)


_WORK = """\
A sandbox holds a project as immutable layers. Sessions are private writable views; publishing adds a layer, all or nothing.
- One-off: exec_command without workspace_session_id publishes what the command changed when it ends; file_write and file_edit publish at once.
- Several steps: create_workspace_session, pass its id to exec_command and file_*; its changes stay private until publish_workspace_session.
- status "running": continue with read_command_lines or write_command_stdin and command_session_id. No output is lost.\
"""  # noqa: E501
_RESOLVE = """
- A rejected publish changes nothing and loses nothing: the result lists each conflict and names the call that resolves it: \
rebase_workspace_session, or create_workspace_session for the draft of a one-off command, with on_conflict. Edit conflict markers away, publish again.\
"""  # noqa: E501
_RESOLVE_BY_HAND = """
- A rejected publish changes nothing and loses nothing: the session stays open, and the result lists each conflict and what resolves it.\
"""  # noqa: E501

_PLACE = (
    "- Start: list_sandboxes; if none fits, create_sandbox(image, absolute workspace_root). The host's "
    "files change only by export_changes; "
    "on export_conflict ask the user, keep is safe."
)

INSTRUCTIONS = {
    "agent": f"{_WORK}{_RESOLVE}\n{_PLACE}",
    "runtime": _WORK + _RESOLVE,
    "management": """\
A sandbox holds a copy of a host folder as immutable layers, where coding agents work side by side.
- list_docker_images shows the images that create_sandbox takes; workspace_root is an absolute host path.
- The host's files change only by export_changes, which writes published work, not that of open sessions. It refuses to replace what the \
user changed there (ask; on_conflict keep is safe) and leaves a repository's .git as it is.
- destroy_sandbox removes everything that was not exported.""",  # noqa: E501
    "observability": (
        "Read-only views of sandboxes. Begin with snapshot: without sandbox_id it covers all of them."
    ),
    "all": f"{_WORK}{_RESOLVE}\n{_PLACE}",
}
