"""The operations of all three domains: the manager's own, the agent's by import. Standard library only.

Command-line programs, MCP server, gateway and help pages read it.
"""

from __future__ import annotations

from collections.abc import Mapping

from eos_agent.wire.arguments import budget_s, check_arguments
from eos_agent.wire.operation import AGENT, NO_BUDGET, Argument, Family, Operation, ResultField
from eos_agent.wire.operations import RUNTIME, RUNTIME_FAMILIES
from eos_agent.wire.operations_observe import OBSERVABILITY, OBSERVABILITY_FAMILIES
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError

TYPE_CHECKING = False  # importing `typing` takes a tenth of a command line program's time
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "AGENT_TOOLS",
    "ALL",
    "DOMAINS",
    "FAMILIES",
    "MANAGER",
    "OBSERVABILITY",
    "RUNTIME",
    "SETS",
    "Argument",
    "Operation",
    "ResultField",
    "budget_s",
    "build",
    "check_arguments",
    "find",
    "in_set",
    "operations_of_set",
    "suggestions",
]

AGENT_TOOLS = frozenset(
    {
        "create_sandbox", "list_sandboxes", "destroy_sandbox", "export_changes",
        "exec_command", "write_command_stdin", "close_stdin", "read_command_lines", "signal_command",
        "file_read", "file_write", "file_edit", "apply_patch", "file_list", "file_search", "file_delete",
        "file_move", "create_workspace_session", "publish_workspace_session", "rebase_workspace_session",
        "diff_session", "checkpoint_session", "restore_session", "destroy_workspace_session",
        "list_workspace_sessions",
    }
)  # fmt: skip
"""The set `agent`: at most 25 tools within 5,000 tokens of names, descriptions and input schemas."""

SETS = ("management", "runtime", "observability", "agent", "all")
_MANAGEMENT = ("management", "agent", "all")
_FOR_PEOPLE = ("management", "all")

_RECORD = (
    ResultField("id", "string"),
    ResultField("workspace_root", "string"),
    ResultField("state", "string", "creating, ready, stopping, stopped or failed"),
    ResultField("activity_revision", "integer", "one more after each change through the gateway"),
    ResultField("daemon", "object|null"),
    ResultField("daemon_http", "object|null"),
    ResultField("shared_base", "object|null"),
    ResultField("resource_profile", "object|null"),
    ResultField("quota", "object", "if configured: bytes, layers, and which of them are enforced", ours=True),
    ResultField(
        "warnings",
        "array",
        "if any: what the copy of the workspace left out; 20 at most",
        ours=True,
    ),
    ResultField(
        "silent_since_unix_ms",
        "integer",
        "set while its agent runs but does not answer (frozen or overloaded)",
        ours=True,
    ),
)
_READABLE = ResultField(
    "readable",
    "object",
    "what sessions can read outside of the workspace: files, hidden, network; one sentence each",
    ours=True,
)
_RECORD_EXAMPLE = (
    '{"id": "eos-2c1e…", "workspace_root": "/home/me/app", "state": "%s", "activity_revision": 0, "daemon": '
    '{"host": "127.0.0.1", "port": 41001}, '
    '"daemon_http": {"host": "127.0.0.1", "port": 42001}, "shared_base": {"source": "…", "target": '
    '"/eos/layer-stack/base", "root_hash": "ab12…", "readonly": true}}'
)
_SANDBOX = Argument("sandbox_id", "string", required=True, help="Sandbox id.", value="ID")

MANAGER_FAMILIES = (
    Family(
        "management",
        "Sandbox management",
        "Find, create, list, squash, export and destroy sandboxes.",
        "Host-side operations of the manager.",
    ),
)

# Groups of the manager's one family on its help page.
MANAGER_GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Host discovery",
        "Find local images and workspace directories.",
        ("list_docker_images", "list_workspace_directories", "gateway_info"),
    ),
    (
        "Sandbox lifecycle",
        "Create, list, inspect and remove sandboxes.",
        (
            "create_sandbox",
            "list_sandboxes",
            "inspect_sandbox",
            "start_sandbox",
            "forward_url",
            "destroy_sandbox",
            "prune",
        ),
    ),
    (
        "Layer delivery",
        "Squash published layers, write their changes to the host, or bring the host's in.",
        ("squash_layerstacks", "export_changes", "import_changes"),
    ),
)

_ALLOW_SENSITIVE = Argument(
    "allow_sensitive",
    "boolean",
    help="Allow a directory of secrets or startup files: a home, ~/.ssh, /etc.",
    default=False,
    ours=True,
    hidden=True,
)

MANAGER: tuple[Operation, ...] = (
    Operation(
        "create_sandbox",
        "manager",
        "management",
        "Create and start one or more sandboxes",
        "Create a sandbox over a copy of a host directory, ready for use. "
        "The host directory is never written; get results out with export_changes. Its id is every other "
        "tool's sandbox_id, which may be left out while there is one sandbox.",
        (
            Argument(
                "image",
                "string",
                required=True,
                help="Local image, such as ubuntu:24.04; host or rootfs:/abs/dir run without Docker.",
                value="IMAGE",
            ),
            Argument(
                "workspace_root",
                "path",
                required=True,
                help="Absolute host directory to copy.",
                flag="--workspace-bind-root",
                aliases=("--workspace-root",),
                value="PATH",
            ),
            Argument("count", "integer", help="Number of sandboxes.", default=1, minimum=1),
            Argument(
                "git_ref",
                "string",
                help="Branch, tag or commit to check out, in place of the directory as it is now.",
                value="REF",
                ours=True,
            ),
            Argument(
                "git_identity",
                "string",
                help="Author of commits without another identity: the user, or with none the agent.",
                default="host",
                choices=("host", "none"),
                ours=True,
            ),
            _ALLOW_SENSITIVE,
        ),
        scope="system",
        owner="manager",
        related=("list_sandboxes", "inspect_sandbox", "destroy_sandbox"),
        examples=(
            "sandbox-manager-cli create_sandbox --image ubuntu:24.04 --workspace-bind-root /testbed",
            "sandbox-manager-cli create_sandbox --image ubuntu:24.04 --workspace-bind-root /testbed "
            "--count 5",
        ),
        when_to_use=(
            "Choose the image and the workspace directory with the discovery operations first.",
            "count=1 returns one record; a larger count returns a sandboxes array.",
            "A batch that fails is rolled back; a success changes the state of the host and of containers.",
        ),
        result=(*_RECORD, _READABLE, ResultField("sandboxes", "array", "with count above 1")),
        sets=_MANAGEMENT,
        waits=NO_BUDGET,
        promise="With count 1 one record, otherwise {sandboxes: [record, …]}; each is ready.",
        result_example=_RECORD_EXAMPLE % "ready",
    ),
    Operation(
        "list_docker_images",
        "manager",
        "management",
        "List local images",
        "List local image references that create_sandbox accepts: tags, digests, ids of untagged images, "
        "and host where sandboxes without Docker work. Pulls nothing.",
        (),
        scope="system",
        owner="manager",
        read_only=True,
        idempotent=True,
        related=("create_sandbox",),
        examples=("sandbox-manager-cli list_docker_images",),
        when_to_use=(
            "Call it before create_sandbox when you need a valid local image reference.",
            "The result can hold tags, digests and untagged image ids; pass the chosen string on as it is.",
            "It pulls no image and creates no sandbox.",
        ),
        result=(ResultField("images", "array"),),
        sets=_FOR_PEOPLE,
        promise="images is the complete set of the configured provider, sorted.",
        result_example='{"images": ["sha256:0c5b…", "ubuntu:24.04"]}',
    ),
    Operation(
        "list_workspace_directories",
        "manager",
        "management",
        "Browse allowed workspace directories",
        "Without path list the host's allowed workspace roots; with one its immediate subdirectories (at "
        "most 500). Use a returned path as create_sandbox.workspace_root.",
        (Argument("path", "path", help="Absolute directory; omit for the roots.", value="PATH"),),
        scope="system",
        owner="manager",
        read_only=True,
        idempotent=True,
        related=("create_sandbox",),
        examples=(
            "sandbox-manager-cli list_workspace_directories",
            "sandbox-manager-cli list_workspace_directories --path /home/me/project",
        ),
        when_to_use=(
            "Omit path for the roots, then browse the returned absolute paths level by level.",
            "Only immediate subdirectories are returned; repeat the call to go deeper.",
            "Pass the chosen absolute path to create_sandbox as workspace_root.",
        ),
        result=(
            ResultField("path", "string|null"),
            ResultField("parent", "string|null"),
            ResultField("truncated", "boolean"),
            ResultField("directories", "array", "name and path"),
        ),
        sets=_FOR_PEOPLE,
        promise="path and parent may be null at a root; truncated is true above the limit.",
        result_example='{"path": "/srv/work", "parent": "/srv", "truncated": false, "directories": '
        '[{"name": "example", "path": "/srv/work/example"}]}',
    ),
    Operation(
        "destroy_sandbox",
        "manager",
        "management",
        "Stop and remove a sandbox",
        "Stop a sandbox and remove it with all its layers, sessions and drafts: everything not exported is "
        "gone for good. The host's directory is untouched.",
        (
            _SANDBOX,
            Argument(
                "if_clean",
                "boolean",
                help="true: refuse while there is unpublished work, a running command or a draft.",
                default=False,
                ours=True,
                hidden=True,
            ),
            Argument(
                "dry_run",
                "boolean",
                help="true: only say what would be deleted.",
                default=False,
                ours=True,
                hidden=True,
            ),
        ),
        scope="system",
        owner="manager",
        destructive=True,
        related=("list_sandboxes", "inspect_sandbox", "export_changes"),
        examples=("sandbox-manager-cli destroy_sandbox --sandbox-id eos-1",),
        when_to_use=(
            "Confirm the target with inspect_sandbox first.",
            "The manager stops the agent, removes the sandbox, marks its record stopped and deletes it.",
            "If the removal fails, the record stays, in the state failed, until a person repairs it.",
        ),
        result=(
            *_RECORD,
            ResultField(
                "discarded",
                "object",
                "deleted layers, sessions, drafts; unpublished: sessions, their paths (100), count, "
                "bytes; drafts; unexported: newest_version, exported_version, dest",
                ours=True,
            ),
            ResultField("dry_run", "boolean", "true: nothing was deleted", ours=True),
        ),
        sets=_MANAGEMENT,
        waits=NO_BUDGET,
        promise="The final record, in the state stopped; it is no longer listed.",
        result_example=_RECORD_EXAMPLE % "stopped",
    ),
    Operation(
        "list_sandboxes",
        "manager",
        "management",
        "List known sandboxes",
        "List all sandboxes with id, state and workspace directory. Start here to find a sandbox_id.",
        (),
        scope="system",
        owner="manager",
        read_only=True,
        idempotent=True,
        related=("inspect_sandbox", "create_sandbox"),
        examples=("sandbox-manager-cli list_sandboxes",),
        when_to_use=(
            "The first read-only source of sandbox ids and lifecycle states.",
            "A record that is creating, stopping, stopped or failed may have no endpoint.",
            "A stored endpoint need not be reachable; for health use observability snapshot.",
        ),
        result=(ResultField("sandboxes", "array", "records, sorted by id"),),
        sets=_MANAGEMENT,
        promise="sandboxes is empty when the manager has no records.",
        result_example='{"sandboxes": [' + _RECORD_EXAMPLE % "ready" + "]}",
    ),
    Operation(
        "inspect_sandbox",
        "manager",
        "management",
        "Show one sandbox's record",
        "Show one sandbox's record: state, workspace directory, endpoints, base. It does not check health.",
        (_SANDBOX,),
        scope="system",
        owner="manager",
        read_only=True,
        idempotent=True,
        related=("list_sandboxes", "snapshot"),
        examples=("sandbox-manager-cli inspect_sandbox --sandbox-id eos-1",),
        when_to_use=(
            "When you need one record and its endpoints; take the id from list_sandboxes.",
            "It reads the manager's registry and does not ask the agent: it does not prove health.",
            "Treat paths and endpoints as operational metadata.",
        ),
        result=(*_RECORD, _READABLE),
        sets=_FOR_PEOPLE,
        promise="Outside the state ready, daemon, daemon_http and shared_base may be null.",
        result_example=_RECORD_EXAMPLE % "ready",
    ),
    Operation(
        "squash_layerstacks",
        "manager",
        "management",
        "Squash published layers",
        "Replace runs of adjacent published layers by one equivalent layer each. Content stays the same; "
        "versions inside a run can no "
        "longer be opened. Live sessions keep the layers that they have. For storage upkeep, not part of "
        "publishing.",
        (_SANDBOX,),
        scope="system",
        owner="manager",
        idempotent=True,
        related=("inspect_sandbox", "export_changes", "layerstack"),
        examples=("sandbox-manager-cli squash_layerstacks --sandbox-id eos-1",),
        when_to_use=(
            "For storage upkeep by an operator; it changes the active layer manifest.",
            "The sandbox commits equivalent flat layers and reports what is reclaimed and what a session "
            "still leases until it ends.",
            "A sandbox too old to squash answers operation_failed and must be created again.",
        ),
        result=(
            ResultField("manifest_version", "integer"),
            ResultField("squashed_blocks", "array"),
            ResultField("swept_sessions", "array"),
            ResultField("faulty_sessions", "array"),
        ),
        sets=_FOR_PEOPLE,
        waits=NO_BUDGET,
        promise="The optional blocked_reasons and faulty_sessions say why a layer was not reclaimed.",
        result_example='{"manifest_version": 5, "squashed_blocks": [{"squashed_layer_id": '
        '"S000005-1f00aa12", "replaced_layer_ids": ["L000003-…", "L000002-…"], '
        '"replaced_layers": "reclaimed"}], "swept_sessions": [{"session_id": "…", "disposition": '
        '"identity"}]}',
    ),
    Operation(
        "export_changes",
        "manager",
        "management",
        "Write published changes to the host",
        "Write what is published, not open sessions, to the host: into a directory (deletions too) or one "
        "archive.",
        (
            _SANDBOX,
            Argument(
                "dest",
                "path",
                required=True,
                help="Absolute host path.",
                value="PATH",
                beside="format",
            ),
            Argument(
                "format",
                "string",
                help="git: commits on a branch.",
                default="dir",
                choices=("dir", "tar", "tar-zst", "git"),
            ),
            Argument(
                "ref",
                "string",
                help="git: full name of the ref; default refs/heads/eos/SANDBOX.",
                value="REF",
                ours=True,
                hidden=True,
            ),
            Argument(
                "history",
                "string",
                help="git: a commit per publication, per session, or one.",
                choices=("publish", "session", "one"),
                ours=True,
                hidden=True,
            ),
            Argument("dry_run", "boolean", help="Only list changes.", default=False),
            Argument(
                "on_conflict",
                "string",
                help="Paths that dest changed too; default fail.",
                choices=("fail", "keep", "merge", "overwrite"),
            ),
            Argument(
                "ignored",
                "string",
                help="exclude: neither write nor delete what .gitignore excludes; default include.",
                choices=("include", "exclude"),
                ours=True,
            ),
            Argument("with_git", "boolean", help="Overwrite dest's .git.", default=False, hidden=True),
            Argument(
                "times",
                "string",
                help="keep: the sandbox's; fresh: as builds in dest need them.",
                choices=("fresh", "keep"),
                hidden=True,
            ),
            Argument(
                "allow_unsafe", "boolean", help="Write git hooks, .envrc, ...", default=False, hidden=True
            ),
            Argument(
                "skip_unsafe",
                "boolean",
                help="Leave such files out, write the rest.",
                default=False,
                hidden=True,
            ),
            Argument("keep_setuid", "boolean", help="Keep files' setuid bits.", default=False, hidden=True),
            _ALLOW_SENSITIVE,
        ),
        scope="system",
        owner="manager",
        destructive=True,
        related=("inspect_sandbox", "squash_layerstacks"),
        examples=(
            "sandbox-manager-cli export_changes --sandbox-id eos-1 --dest /home/me/myproject",
            "sandbox-manager-cli export_changes --sandbox-id eos-1 --dest /tmp/delta.tar.zst "
            "--format tar-zst",
            "sandbox-manager-cli export_changes --sandbox-id eos-1 --dest /home/me/myproject --dry-run",
            "sandbox-manager-cli export_changes --sandbox-id eos-1 --dest /home/me/myproject "
            "--on-conflict keep --ignored exclude",
            "sandbox-manager-cli export_changes --sandbox-id eos-1 --format git",
        ),
        when_to_use=(
            "dir applies the changes to a host directory; tar and tar-zst write an archive atomically. With "
            "dry_run the checks and counts are "
            "the same and nothing is written.",
            "dest must be absolute; the root, the home directory, the manager's state and .export are "
            "refused. Paths that were changed in dest "
            "too are refused with their list before anything is written (export_conflict), and so are files "
            "that the host would run by "
            "itself (unsafe_content). A repository keeps its own .git: left_out reports it.",
            "The manager checks the bytes that it receives and alone writes to the destination. Without "
            "keep_setuid files lose setuid and "
            "setgid bits; stripped lists them.",
        ),
        result=(
            ResultField("manifest_version", "integer"),
            ResultField("format", "string"),
            ResultField("layers_exported", "array"),
            ResultField("files_written", "integer"),
            ResultField("symlinks_written", "integer", "all symlinks, including those already at dest"),
            ResultField("deletes_applied", "integer", "all deletions, including paths already absent"),
            ResultField("opaque_clears", "integer"),
            ResultField("skipped_unchanged", "integer", "files already at dest with this content"),
            ResultField("whiteouts_emitted", "integer"),
            ResultField("bytes_written", "integer"),
            ResultField("live_workspace_sessions", "array"),
            ResultField("dest", "string", "git: the repository", ours=True),
            ResultField("ref", "string", "git: the ref", ours=True),
            ResultField(
                "parent", "string|null", "git: the commit that was checked out at creation", ours=True
            ),
            ResultField("head", "string|null", "git: the commit at the ref now", ours=True),
            ResultField(
                "commits",
                "array",
                "git: new commits: oid, layer_id (null: an agent's own), author, subject, paths",
                ours=True,
            ),
            ResultField("commit_count", "integer", "git: number of new commits", ours=True),
            ResultField("empty_directories", "array", "git: directories that git cannot have", ours=True),
            ResultField("hygiene", "array", "files that run code on the host", ours=True),
            ResultField(
                "stripped",
                "array",
                "files that lost their setuid or setgid bit, or a capability: path, what; 100 at most",
                ours=True,
            ),
            ResultField("stripped_count", "integer", "number of all stripped files", ours=True),
            ResultField(
                "hygiene_count", "integer", "number of all such files, when hygiene lists fewer", ours=True
            ),
            ResultField("hygiene_classes", "object", "number of files of each class", ours=True),
            ResultField(
                "not_kept",
                "array",
                "dir: path, and which of owner, group, attributes the system refused; 100 at most",
                ours=True,
            ),
            ResultField("not_kept_count", "integer", "number of all such paths", ours=True),
            ResultField(
                "not_recorded",
                "string",
                "dir: why this export, or earlier ones, could not be recorded",
                ours=True,
            ),
            ResultField(
                "ignored_staging",
                "array",
                "dir: directories called .eos-export-* that are not of this gateway; they were not touched",
                ours=True,
            ),
            ResultField("ignored_staging_count", "integer", "number of all of them", ours=True),
            ResultField(
                "left_staging",
                "array",
                "dir: this export's staging directory, when an immutable file in it kept it from "
                "being removed",
                ours=True,
            ),
            ResultField(
                "dry_run",
                "boolean",
                "true: nothing was written; counts are those of an export",
                ours=True,
            ),
            ResultField(
                "changes", "array", "dry run: action (write, delete, mode) and path; 200 at most", ours=True
            ),
            ResultField("change_count", "integer", "dry run: number of all changes", ours=True),
            ResultField(
                "edited",
                "array|null",
                "dry run, dir: files of dest that would be overwritten or deleted and match neither the "
                "copied workspace nor an earlier export; 200 at most; null: the copy is not known",
                ours=True,
            ),
            ResultField("edited_count", "integer", "dry run, dir: number of all edited files", ours=True),
            ResultField(
                "left_out",
                "object",
                "dir: count, first paths, why: .git of a repository, byte code",
                ours=True,
            ),
            ResultField(
                "would_conflict",
                "array",
                "dry run, dir: path, differs (edited, deleted, created, kind), because_of (the change above "
                "it); 200 at most",
                ours=True,
            ),
            ResultField("would_conflict_count", "integer", "dry run, dir: number of conflicts", ours=True),
            ResultField(
                "kept_back",
                "array",
                "on_conflict keep: paths that stay as dest has them; 200 at most",
                ours=True,
            ),
            ResultField("kept_back_count", "integer", "number of all paths kept back", ours=True),
            ResultField(
                "overwritten",
                "array",
                "on_conflict overwrite: what was lost, in the form of would_conflict",
                ours=True,
            ),
            ResultField("overwritten_count", "integer", "number of all overwritten paths", ours=True),
            ResultField(
                "unsafe",
                "array",
                "dir: path and why of files that would run by themselves; 100 at most",
                ours=True,
            ),
            ResultField("unsafe_count", "integer", "number of all unsafe files", ours=True),
            ResultField("replaces", "boolean", "dry run, archives: there is a file at dest", ours=True),
            ResultField(
                "ignored",
                "object",
                "files and bytes of the changed files that .gitignore excludes; included: whether they are "
                "in the export",
                ours=True,
            ),
            ResultField(
                "created",
                "boolean",
                "dir: dest did not exist, and has the changed files only (dry run: would have)",
                ours=True,
            ),
            ResultField("hint", "string", "with created: how to get the whole project", ours=True),
        ),
        sets=_MANAGEMENT,
        waits=NO_BUDGET,
        promise="The dir result reports deletions and opaque clears; an archive's reports the whiteouts "
        "it holds.",
        result_example='{"manifest_version": 7, "format": "tar-zst", "layers_exported": ["L000007-…", '
        '"L000006-…"], "files_written": 12, '
        '"symlinks_written": 1, "whiteouts_emitted": 2, "bytes_written": 48211}',
    ),
    Operation(
        "import_changes",
        "manager",
        "management",
        "Bring the host's changes into a sandbox",
        "Publish what a person changed in the workspace directory since the sandbox was made, or since the "
        "last import or export to it, as one version: all of it, or every conflict and nothing. Open "
        "sessions see it when they rebase.",
        (
            _SANDBOX,
            Argument(
                "paths",
                "json_array",
                help="Only these paths of the workspace, and what is below them.",
                items={"type": "string"},
                ours=True,
            ),
            Argument("dry_run", "boolean", help="Only list changes and conflicts.", default=False, ours=True),
            AGENT,
            _ALLOW_SENSITIVE,
        ),
        scope="system",
        owner="manager",
        related=("export_changes", "create_sandbox", "rebase_workspace_session"),
        examples=(
            "sandbox-manager-cli import_changes --sandbox-id eos-1",
            "sandbox-manager-cli import_changes --sandbox-id eos-1 --dry-run",
            """sandbox-manager-cli import_changes --sandbox-id eos-1 --paths '["src/app.py", "docs"]'""",
        ),
        when_to_use=(
            "The directory is compared with what the sandbox has of it, file by file where lstat differs; it "
            "is never written.",
            "Both changed a path: merged as in any publication (base: what was copied or imported last), or "
            "refused with the list in publish_rejection.",
            "Special files, and the .git file of a linked worktree, are left out.",
        ),
        result=(
            ResultField("sandbox_id", "string", ours=True),
            ResultField("workspace_root", "string", ours=True),
            ResultField("dry_run", "boolean", ours=True),
            ResultField("no_op", "boolean", "true: the head has all of it, no version was made", ours=True),
            ResultField(
                "changed", "array", "path, change (added, modified, deleted, type); 200 at most", ours=True
            ),
            ResultField("changed_count", "integer", ours=True),
            ResultField("publish", "object", "as of publish_workspace_session", ours=True),
            ResultField("layer_id", "string|null", ours=True),
            ResultField("left_out", "array", "special files; 50 at most", ours=True),
            ResultField(
                "rounds", "integer", "times that the directory was read until it stood still", ours=True
            ),
            ResultField(
                "would_publish", "boolean", "of a dry run, as the next keys of preview_publish", ours=True
            ),
            ResultField("head_version", "integer", ours=True),
            ResultField("route_summary", "object", ours=True),
            ResultField("conflicts", "array", ours=True),
            ResultField("conflict_count", "integer", ours=True),
            ResultField("notices", "array", ours=True),
            ResultField("dropped", "array", ours=True),
            ResultField("refused", "object|null", ours=True),
            ResultField("next", "string|null", ours=True),
        ),
        sets=_FOR_PEOPLE,
        ours=True,
        waits=NO_BUDGET,
        promise="The author of the version is host. The directory is not changed, and a rejected import "
        "changes nothing.",
        result_example='{"sandbox_id": "eos-1", "workspace_root": "/home/me/app", "dry_run": false, '
        '"changed": [{"path": "src/app.py", "change": "modified"}], "changed_count": 1, '
        '"no_op": false, "publish": {"no_op": false, "revision": {"manifest_version": 2, "root_hash": "…", '
        '"layer_count": 2}, "route_summary": {"source_count": 1, "ignored_count": 0}}, "layer_id": '
        '"L000002-…", "rounds": 1}',
    ),
    Operation(
        "start_sandbox",
        "manager",
        "management",
        "Start a stopped sandbox again",
        "Start a sandbox whose container was stopped or whose agent died, and wait until it answers. A "
        "running sandbox is not changed. "
        "Published versions and drafts stay; unpublished work of its former sessions is in drafts.",
        (_SANDBOX,),
        scope="system",
        owner="manager",
        idempotent=True,
        related=("inspect_sandbox", "list_sandboxes"),
        examples=("sandbox-manager-cli start_sandbox --sandbox-id eos-1",),
        result=_RECORD,
        sets=("all",),
        ours=True,
        waits=NO_BUDGET,
        promise="The record in the state ready, with its present ports.",
        result_example=_RECORD_EXAMPLE % "ready",
    ),
    Operation(
        "forward_url",
        "manager",
        "management",
        "Make a browser address for a server in a sandbox",
        "Make the address at which a browser on this machine reaches a server in the sandbox. It holds a "
        "ticket that is valid for one minute "
        "and that server only: open it at once; the browser then gets a cookie for twelve hours. Name the "
        "session of a server in an isolated one.",
        (
            _SANDBOX,
            Argument(
                "port",
                "integer",
                required=True,
                help="Port of the server in the sandbox.",
                minimum=1,
                maximum=65535,
            ),
            Argument(
                "workspace_session_id",
                "string",
                help="Isolated session of the server; omit for the sandbox's own network.",
                value="ID",
            ),
            Argument("path", "string", help="Path to open.", default=""),
        ),
        scope="system",
        owner="manager",
        related=("inspect_sandbox", "create_workspace_session"),
        examples=("sandbox-manager-cli forward_url --sandbox-id eos-1 --port 8000",),
        result=(
            ResultField("url", "string", "open it once, and do not pass it on"),
            ResultField("expires_unix_ms", "integer", "end of the ticket, not of the cookie"),
        ),
        sets=("all",),
        ours=True,
        promise="The address neither holds nor reveals the sandbox's token.",
        result_example='{"url": "http://127.0.0.1:32768/forward/shared/8000/?eos_ticket=1767000060.5e…", '
        '"expires_unix_ms": 1767000060000}',
    ),
    Operation(
        "prune",
        "manager",
        "management",
        "Remove what no sandbox uses",
        "List items of this gateway that no sandbox uses: shared volumes that it made, copies of "
        "workspaces, runtimes. With dry_run=false remove them. The next create_sandbox makes again what it "
        "needs.",
        (Argument("dry_run", "boolean", help="false: remove them.", default=True),),
        scope="system",
        owner="manager",
        destructive=True,
        idempotent=True,
        related=("list_sandboxes", "destroy_sandbox"),
        examples=("sandbox-manager-cli prune", "sandbox-manager-cli prune --dry-run=false"),
        result=(
            ResultField("dry_run", "boolean"),
            ResultField(
                "items",
                "array",
                "kind (volume, base, runtime, scrap), name, bytes (null: not known); 1000 at most",
            ),
            ResultField("count", "integer"),
            ResultField("bytes", "integer", "sum of the known sizes"),
            ResultField("warnings", "array", "what could not be examined or removed, and why"),
        ),
        sets=("all",),
        ours=True,
        waits=NO_BUDGET,
        promise="Items that a sandbox or another gateway uses are not removed.",
        result_example='{"dry_run": true, "items": [{"kind": "volume", "name": "eos-shared-base-ab12…", '
        '"bytes": null}], "count": 1, "bytes": 0, "warnings": []}',
    ),
    Operation(
        "gateway_info",
        "manager",
        "management",
        "Version and features of the gateway",
        "Report the gateway's version, catalog hash, features and providers. Use it to see which back ends "
        "work on this host.",
        (),
        scope="system",
        owner="manager",
        read_only=True,
        idempotent=True,
        related=("list_docker_images",),
        examples=("sandbox-manager-cli gateway_info",),
        result=(
            ResultField("version", "string"),
            ResultField("catalog_hash", "string"),
            ResultField("features", "array"),
            ResultField("backends", "object"),
        ),
        sets=("all",),
        ours=True,
        promise="Answered by the gateway itself; no sandbox is asked.",
        result_example='{"version": "0.1.0", "catalog_hash": "9f…", "features": ["drafts"], "backends": {}}',
    ),
)

DOMAINS: dict[str, tuple[Operation, ...]] = {
    "manager": MANAGER,
    "runtime": RUNTIME,
    "observability": OBSERVABILITY,
}
FAMILIES: dict[str, tuple[Family, ...]] = {
    "manager": MANAGER_FAMILIES,
    "runtime": RUNTIME_FAMILIES,
    "observability": OBSERVABILITY_FAMILIES,
}
ALL: tuple[Operation, ...] = (*MANAGER, *RUNTIME, *OBSERVABILITY)
_BY_NAME = {operation.name: operation for operation in ALL}


def find(name: str) -> Operation | None:
    """Return the operation of that name in any domain, or None; names do not collide."""
    return _BY_NAME.get(name)


def in_set(operation: Operation, name: str) -> bool:
    """Tell whether an operation is a tool of a set."""
    return operation.name in AGENT_TOOLS if name == "agent" else name in operation.sets


def operations_of_set(name: str, *, ours: bool = True) -> tuple[Operation, ...]:
    """List the tools of an MCP set, the contract's first, each group in catalog order. `ours=False`: the
    contract's only.
    """
    members = [operation for operation in ALL if in_set(operation, name)]
    return (*(o for o in members if not o.ours), *(o for o in members if o.ours and ours))


def build(
    operation: Operation, args: Mapping[str, Any], *, selector: str | None = None, bounds: bool = True
) -> tuple[str | None, dict[str, Any]]:
    """Check one call; return its scope and arguments: `(sandbox_id or None for system scope, args)`.

    Args:
        selector: the sandbox named outside the arguments, if any. A `sandbox_id` inside them must equal it,
            or selects alone.
    Raises:
        OperationError: invalid_request, in the order of contract 0.6.
    """
    rest, sandbox_id = dict(args), None
    if operation.scope != "system":
        sandbox_id = selector
        if "sandbox_id" in rest:
            inner = rest.pop("sandbox_id")
            if not isinstance(inner, str) or not inner.strip():
                raise OperationError(
                    INVALID_REQUEST,
                    f"sandbox_id of {operation.name} must be a non-blank string",
                    {"argument": "sandbox_id"},
                    reason="wrong_type",
                )
            if selector is not None and inner != selector:
                details = {"argument": "sandbox_id", "value": inner}
                raise OperationError(
                    INVALID_REQUEST,
                    f"sandbox_id of {operation.name} differs from the selected sandbox",
                    details,
                    reason="selector_mismatch",
                )
            sandbox_id = inner
        if sandbox_id is not None and not sandbox_id.strip():
            raise OperationError(
                INVALID_REQUEST,
                "sandbox_id must be a non-blank string",
                {"argument": "sandbox_id", "value": sandbox_id},
                reason="wrong_type",
            )
        if sandbox_id is None and operation.scope == "sandbox_required":
            raise OperationError(
                INVALID_REQUEST,
                f"sandbox_id is required for {operation.name}",
                {"argument": "sandbox_id"},
                reason="missing_argument",
            )
    return sandbox_id, check_arguments(operation, rest, bounds=bounds)


def suggestions(word: str, domain: str | None = None) -> list[str]:
    """List the operations in whose name, texts, arguments or family `word` occurs, case folded, in catalog
    order.
    """
    needle = word.casefold()
    found: list[str] = []
    for operation in ALL if domain is None else DOMAINS[domain]:
        family = next((f for f in FAMILIES[operation.domain] if f.id == operation.family), None)
        texts = [operation.name, operation.summary, operation.description, *operation.examples]
        texts += [text for a in operation.arguments for text in (a.name, a.help)]
        texts += [] if family is None else [family.title, family.summary, family.description]
        if any(needle in text.casefold() for text in texts):
            found.append(operation.name)
    return found


def document() -> dict[str, Any]:
    """Return the catalog document of contract 0.7."""
    return {
        "schema_version": 1,
        "kind": "ephemeral_sandbox_product_catalog",
        "domains": {name: _domain(name) for name in DOMAINS},
    }


def _domain(name: str) -> dict[str, Any]:
    members = DOMAINS[name]
    return {
        "operation_execution_space": name,
        "families": [family._asdict() for family in FAMILIES[name]],
        "operations": [
            {
                "name": o.name,
                "family": o.family,
                "summary": o.summary,
                "description": o.description,
                "args": [
                    {
                        "name": a.name,
                        "kind": a.kind,
                        "required": a.required,
                        "help": a.help,
                        "default": None
                        if a.default is None
                        else str(a.default).lower()
                        if isinstance(a.default, bool)
                        else str(a.default),
                    }
                    for a in o.arguments
                ],
                "related": list(o.related),
            }
            for o in members
        ],
        "routes": [route for o in members for route in _routes(o)],
    }


def _routes(operation: Operation) -> list[dict[str, str]]:
    kinds = {
        "system": ("system",),
        "sandbox_required": ("sandbox",),
        "system_or_sandbox": ("system", "sandbox"),
    }[operation.scope]
    return [
        {
            "operation": operation.name,
            "scope_policy": operation.scope,
            "scope_kind": kind,
            "execution_owner": "manager" if kind == "system" else operation.owner,
            "visibility": operation.visibility,
        }
        for kind in kinds
    ]
