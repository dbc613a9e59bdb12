"""Contents of a container before its start: labels, and the files that are copied into it."""

from __future__ import annotations

import json
from typing import Any

from eos_agent.wire import proof
from eos_mcp.config.model import Docker
from eos_mcp.providers.provider import SandboxPlan
from eos_mcp.providers.volumes import files_archive
from eos_mcp.record.registry import quota_of

RUNTIME_DIR = "/eos/runtime/daemon"
SETTINGS_AT = "/eos/config/agent.json"
TOKEN_AT = f"{RUNTIME_DIR}/token"
ENDPOINT_AT = f"{RUNTIME_DIR}/endpoint.json"


def stack_root(plan: SandboxPlan) -> str:
    return str(plan.sections["runtime"]["workspace"]["layer_stack_root"])


def labels(plan: SandboxPlan, docker: Docker, instance_id: str) -> dict[str, str]:
    """Return the labels by which a gateway finds the sandbox again; the token only with `token_label`."""
    profile = docker.profile().to_json(docker.resource_profile)
    found = {
        "eos.sandbox_id": plan.sandbox_id,
        "eos.gateway_instance_id": instance_id,
        "eos.daemon_port": str(docker.daemon_port),
        "eos.daemon_http_port": str(docker.daemon_http_port),
        "eos.host_workspace_root": plan.workspace_root,
        "eos.container_workspace_root": docker.container_workspace_root,
        "eos.image": plan.image,
        "eos.shared_base.source": plan.base.source,
        "eos.shared_base.target": f"{stack_root(plan)}/base",
        "eos.shared_base.root_hash": plan.base.root_hash,
        "eos.shared_base.readonly": "true",
        "eos.created_at": str(plan.created_unix_ms),
        "eos.cleanup_policy": "remove-on-destroy",
        "eos.proof": str(proof.FORMAT),
        "eos.resource_profile": docker.resource_profile,
        **{f"eos.resource.{key}": json.dumps(value) for key, value in profile.items() if key != "name"},
    }
    quota = quota_of(plan.sections)
    if quota is not None:
        found["eos.quota"] = json.dumps(quota)
    if docker.token_label:
        found["eos.auth_token"] = plan.token
    return found


def settings(
    plan: SandboxPlan, docker: Docker, image: dict[str, Any], limits: dict[str, Any]
) -> dict[str, Any]:
    """Encode the agent's settings file. `image`: the engine's description of the image; its variables are for
    commands, not the agent.
    """
    server: dict[str, Any] = plan.sections["daemon"]["server"]
    config: dict[str, Any] | None = image.get("Config")
    variables: list[str] | None = config.get("Env") if config else None
    return {
        "format": 1,
        "sandbox_id": plan.sandbox_id,
        "provider": "docker",
        "workspace_root": docker.container_workspace_root,
        "layer_stack_root": stack_root(plan),
        "scratch_root": plan.sections["runtime"]["workspace"]["scratch_root"],
        "runtime_dir": RUNTIME_DIR,
        "base_root_hash": plan.base.root_hash,
        "base_dir": None,
        "token_file": TOKEN_AT,
        "tcp_host": "0.0.0.0",
        "tcp_port": docker.daemon_port,
        "http_host": "0.0.0.0",
        "http_port": docker.daemon_http_port,
        "socket_path": server["socket_path"],
        "pid_path": server["pid_path"],
        "endpoint_path": ENDPOINT_AT,
        "rootfs": None,
        "hidden_paths": hidden_paths(plan),
        "image_env": variables or [],
        "container_env": dict(docker.container_env),
        "path": None,
        "private_dirs": [],
        "limits": limits,
        "git_identity": dict(plan.git_identity),
        "config": plan.sections,
    }


def hidden_paths(plan: SandboxPlan) -> list[str]:
    """List the paths hidden from sessions: the configured paths, and each of the agent's directories that no
    configured path contains.
    """
    runtime: dict[str, Any] = plan.sections["runtime"]
    hidden: list[str] = list(plan.sections["runner"]["mount_mask"]["hidden_paths"])
    moved = [
        stack_root(plan),
        runtime["workspace"]["scratch_root"],
        runtime["namespace_execution"]["scratch_root"],
    ]
    return hidden + [
        path
        for path in dict.fromkeys(moved)
        if not any(path == top or path.startswith(top.rstrip("/") + "/") for top in hidden)
    ]


def archive(plan: SandboxPlan, docker: Docker, image: dict[str, Any], limits: dict[str, Any]) -> bytes:
    """Make a tar to extract at `/`: settings, the YAML, the token, and the mount point of the workspace,
    which an empty image lacks.
    """
    written = json.dumps(settings(plan, docker, image, limits), indent=1).encode()
    files: dict[str, tuple[int, bytes | None]] = {}
    for path, mode, content in (
        (SETTINGS_AT, 0o600, written),
        (docker.container_daemon_config_yaml_path, 0o644, plan.yaml),
        (TOKEN_AT, 0o600, plan.token.encode() + b"\n"),
        (docker.container_workspace_root, 0o755, None),
    ):
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts)):
            files.setdefault("/".join(parts[:depth]), (0o755, None))
        files["/".join(parts)] = (mode, content)
    return files_archive(files)
