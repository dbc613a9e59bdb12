"""The demo from set-up to export, in the order in which it happens."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
from mcp import Client, StdioServerParameters

from eos_agent.wire.protocol import OperationError
from eos_mcp.config import paths
from eos_mcp.demo import agents, images, project
from eos_mcp.demo.options import DemoOptions
from eos_mcp.demo.story import Story

PROGRESS_WIDTH = 100
REF = "refs/heads/eos/demo"
LOG = ("log", "--graph", "--format=%h %an: %s", "-n", "8")


def server_parameters(home: Path, backend: str, dest: Path) -> StdioServerParameters:
    """Parameters of one `eos-mcp` process on the demo's own gateway, which sees no other sandboxes.

    State, token and base cache are in `home`. The other cache is there too when the user's own is not
    writable.
    """
    names = (
        "PATH",
        "HOME",
        "XDG_CACHE_HOME",
        "DOCKER_HOST",
        "DOCKER_CONTEXT",
        "DOCKER_CONFIG",
        "XDG_RUNTIME_DIR",
    )
    environment = {name: os.environ[name] for name in names if name in os.environ}
    environment |= {
        "EOS_STATE_DIR": str(home / "state"),
        "EOS_SHARED_BASE_CACHE": str(home / "bases"),
        "EOS_GATEWAY_BACKEND": backend,
    }
    if paths.unusable(paths.cache_dir()) is not None:
        environment["XDG_CACHE_HOME"] = str(home / "cache")
    roots = ["--root", str(home), "--root", str(dest)]
    return StdioServerParameters(
        command=sys.executable, args=["-m", "eos_mcp", "--set", "all", *roots], env=environment
    )


def run(options: DemoOptions, home: Path) -> int:
    story = Story()
    story.heading("eos demo: three agents, one project, one sandbox")
    try:
        choice = images.choose(options.image or None, options.backend)
    except OperationError as error:
        print(f"eos demo: {error.message}", file=sys.stderr)
        return 1
    workspace = home / "tally"
    workspace.mkdir()
    commits = project.unpack(workspace)
    count = sum(
        1 for p in workspace.rglob("*") if p.is_file() and ".git" not in p.relative_to(workspace).parts
    )
    story.say("project", f"tally, a shell program: {count} files, {commits} commits, in {workspace}")
    story.say("sandbox", f"image {choice.image}: {choice.why}")
    dest = Path(options.dest or tempfile.mkdtemp(prefix="eos-demo-result-")).absolute()
    dest.mkdir(parents=True, exist_ok=True)
    server = server_parameters(home, choice.backend, dest)
    status = 1
    try:
        status = anyio.run(perform, options, home, workspace, dest, server, choice.image, story)
    except* (agents.ToolRefused, OSError) as group:
        for leaf in leaves(group):
            print(f"eos demo: {leaf}", file=sys.stderr)
    finally:
        if not options.keep:
            stop_gateway(server)
    return status


def leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    """Return the exceptions of a group and of the groups in it."""
    found: list[Exception] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


async def perform(
    options: DemoOptions,
    home: Path,
    workspace: Path,
    dest: Path,
    server: StdioServerParameters,
    image: str,
    story: Story,
) -> int:
    async with agents.connected(server) as person:
        story.say("mcp", "an eos-mcp server runs and has started a gateway of its own")
        sandbox = await create(person, image, workspace, story)
        finished = False
        try:
            set_up_s = story.elapsed_s()
            story.heading("Three agents at the same time")
            await agents.play(server, sandbox, story)
            story.heading("The result")
            status = await export(person, workspace, dest, sandbox, story)
            story.say("demo", f"{story.elapsed_s() - set_up_s:.1f} s after set-up ({set_up_s:.1f} s)")
            finished = True
            return status
        finally:
            with anyio.CancelScope(shield=True):
                if options.keep and finished:
                    story.say(
                        "sandbox",
                        f"{sandbox} keeps running; EOS_STATE_DIR={home / 'state'} eos runtime --sandbox-id "
                        f"{sandbox} exec_command 'ls'",
                    )
                else:
                    await agents.call(person, "destroy_sandbox", sandbox_id=sandbox)
                    story.say("sandbox", "destroyed: no container, no mount, no process is left")


async def create(person: Client, image: str, workspace: Path, story: Story) -> str:
    async def show_progress(progress: float, total: float | None, message: str | None) -> None:
        if message:
            story.say(
                "", f"  {message if len(message) <= PROGRESS_WIDTH else message[: PROGRESS_WIDTH - 1] + '…'}"
            )

    asked = {"image": image, "workspace_root": str(workspace), "git_identity": "none"}
    result = await person.call_tool(
        "create_sandbox", asked, read_timeout_seconds=120, progress_callback=show_progress
    )
    value = agents.structured("create_sandbox", result)
    story.say(
        "sandbox",
        f"{value['id']} is {value['state']}: a copy of the project is its base, the directory itself stays "
        f"as it is",
    )
    return str(value["id"])


async def export(person: Client, workspace: Path, dest: Path, sandbox: str, story: Story) -> int:
    """Export the published delta onto a copy of the project and run the tests there, on this machine."""
    shutil.copytree(workspace, dest, symlinks=True, dirs_exist_ok=True)
    done = await agents.call(person, "export_changes", sandbox_id=sandbox, dest=str(dest))
    changed = f"{done['files_written']} files written, {done['deletes_applied']} deleted"
    story.say(
        "export",
        f"version {done['manifest_version']}, {len(done['layers_exported'])} layers, onto a copy of the "
        f"project: {changed}",
        str(dest),
    )
    if shutil.which("git"):
        story.say("export", "git status there:", *git(dest, "status", "--short"))
    status, last = host_tests(dest)
    story.say("tests", f"the project's tests on this machine, in {dest}: {last}")
    before, untouched = host_tests(workspace)
    story.say("tests", f"in the directory that the sandbox was made from, which is unchanged: {untouched}")
    if shutil.which("git"):
        await export_commits(person, dest, sandbox, story)
    return 0 if status == 0 and before != 0 else 1


async def export_commits(person: Client, dest: Path, sandbox: str, story: Story) -> None:
    """Export every publication as a commit at a branch of its own, and show the history."""
    done = await agents.call(
        person, "export_changes", sandbox_id=sandbox, format="git", dest=str(dest), ref=REF
    )
    story.say(
        "export",
        f"{done['commit_count']} commits at the branch {REF.removeprefix('refs/heads/')}; no file of the "
        f"directory changed by that; git {' '.join(LOG[:2])}:",
        *git(dest, *LOG, REF),
    )


def git(directory: Path, *words: str) -> list[str]:
    """Return the lines that git prints there."""
    done = subprocess.run(
        ["git", "-C", str(directory), "-c", "safe.directory=*", "--no-pager", *words],
        capture_output=True,
        text=True,
        timeout=30,
    )
    return (done.stdout + done.stderr).rstrip("\n").split("\n")


def host_tests(directory: Path) -> tuple[int, str]:
    """Run the project's tests on this machine, in the exported tree; (exit status, last line)."""
    done = subprocess.run(
        ["/bin/sh", "tests/run.sh"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ.get("PATH", os.defpath)},
    )
    return done.returncode, done.stdout.rstrip("\n").split("\n")[-1]


def stop_gateway(server: StdioServerParameters) -> None:
    """Stop the demo's own gateway and wait until it is gone."""
    command = [sys.executable, "-m", "eos_mcp.cli.eos", "gateway", "stop"]
    done = subprocess.run(command, env=server.env, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        print(f"eos demo: the gateway did not stop: {done.stderr.strip()}", file=sys.stderr)
