"""The sections of the configuration document as frozen values: every key, its default, its bounds. `load.py`
reads them.

Sizes are bytes, times carry their unit in the name; docs/configuration.md explains each key.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

MIB = 1024 * 1024
GIB = 1024 * MIB


class Section(BaseModel):
    """A part of the document: only declared keys, no conversion between types, immutable."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, hide_input_in_errors=True
    )


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError("must be an absolute path")
    if "\0" in value or ".." in value.split("/"):
        raise ValueError("must hold neither NUL nor ..")
    if value.strip("/") in ("", "."):
        raise ValueError("must not be the filesystem root")
    return value


NonEmpty = Annotated[str, StringConstraints(min_length=1, strip_whitespace=False, pattern=r"\S")]
Positive = Annotated[int, Field(ge=1)]
PositiveSeconds = Annotated[float, Field(gt=0)]


class GatewayConfig(Section):
    """`bind_addr`: the TCP endpoint; None listens on the unix socket alone. `idle_exit_s`: 0 means never."""

    bind_addr: NonEmpty | None = None
    pid_path: NonEmpty | None = None
    max_concurrent_connections: Positive = 256
    idle_exit_s: Annotated[float, Field(ge=0)] = 900
    results: Literal["extended", "contract"] = "extended"

    @field_validator("bind_addr")
    @classmethod
    def _endpoint(cls, value: str | None) -> str | None:
        if value is None or value.startswith(("/", "unix:")):
            return value
        host, _, port = value.removeprefix("tcp://").rpartition(":")
        if not host or not port.isdigit() or not 0 <= int(port) <= 65535:
            raise ValueError("must be HOST:PORT or the path of a unix socket")
        return value


class Export(Section):
    """`max_stream_bytes` limits the received bytes; None: no limit.

    Values that the contract's reference has: `directory_mode: 0700`, `git: include`, `on_conflict:
    overwrite`, `allow_unsafe: true`.
    """

    max_stream_bytes: Positive | None = None
    max_decompressed_bytes: Positive = 8 * GIB
    max_apply_entries: Positive = 1_000_000
    directory_mode: Literal["carried", "0700"] = "carried"
    git: Literal["auto", "include", "exclude"] = "auto"
    on_conflict: Literal["fail", "overwrite", "keep", "merge"] = "fail"
    allow_unsafe: bool = False
    skip_unsafe: bool = False
    ignored: Literal["include", "exclude"] = "include"

    @field_validator("directory_mode", mode="before")
    @classmethod
    def _unquoted(cls, value: Any) -> Any:
        return "0700" if value in (0o700, 700) else value  # YAML reads 0700 without quotes as a number


class ObservabilitySnapshot(Section):
    max_concurrent_requests: Positive = 8
    timeout_ms: Positive = 1500


class LocalDaemon(Section):
    """`resource_profile`: a name in `manager.docker.resource_profiles`, or a built-in profile; it limits the
    sessions of local sandboxes. None: each session may use most of the machine's memory and 4096 processes.
    `hidden_paths` adds to the list that `eos doctor` prints; `~/` is the home of the gateway's user.
    """

    resource_profile: NonEmpty | None = None
    hidden_paths: list[NonEmpty] = []
    ready_timeout_s: PositiveSeconds = 30
    stop_timeout_s: PositiveSeconds = 5

    @field_validator("hidden_paths")
    @classmethod
    def _hidden(cls, value: list[str]) -> list[str]:
        found = [os.path.normpath(os.path.expanduser(path)) for path in value]
        for given, path in zip(value, found, strict=True):
            if not path.startswith("/") or path == "/" or "\0" in path:
                raise ValueError(f"{given!r} must be an absolute path, or begin with ~/, and not be / itself")
        return found


class Base(Section):
    """`special_files`: leave out a socket, FIFO or device of the workspace, or refuse the workspace as the
    reference does.
    """

    special_files: Literal["skip", "abort"] = "skip"


DaemonProfileName = Literal["standard", "build-heavy"]


class ResourceProfile(Section):
    """The limits of one sandbox. The workload gets the part that is not reserved for the agent."""

    nano_cpus: Positive
    memory_high_bytes: Positive
    memory_max_bytes: Positive
    pids_max: Positive
    daemon_runtime_profile: DaemonProfileName = "standard"
    separate_workload_cgroup: bool = True

    @property
    def control_plane_pids_reserve(self) -> int:
        return min(32 if self.daemon_runtime_profile == "standard" else 64, max(self.pids_max // 8, 8))

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.memory_high_bytes >= self.memory_max_bytes:
            raise ValueError("memory_high_bytes must be below memory_max_bytes")
        if self.pids_max <= self.control_plane_pids_reserve:
            raise ValueError("pids_max leaves no process for the workload")
        return self

    def to_json(self, name: str) -> dict[str, Any]:
        """Return the `resource_profile` of a sandbox record."""
        return {
            "name": name,
            "nano_cpus": self.nano_cpus,
            "memory_high_bytes": self.memory_high_bytes,
            "memory_max_bytes": self.memory_max_bytes,
            "pids_max": self.pids_max,
            "workload_memory_high_bytes": self.memory_high_bytes * 3 // 4,
            "workload_memory_max_bytes": self.memory_high_bytes,
            "workload_pids_max": self.pids_max - self.control_plane_pids_reserve,
            "control_plane_pids_reserve": self.control_plane_pids_reserve,
            "daemon_runtime_profile": self.daemon_runtime_profile,
            "separate_workload_cgroup": self.separate_workload_cgroup,
        }


BUILT_IN_PROFILES = {
    "standard": ResourceProfile(
        nano_cpus=10**9, memory_high_bytes=384 * MIB, memory_max_bytes=512 * MIB, pids_max=256
    ),
    "build-heavy": ResourceProfile(
        nano_cpus=4 * 10**9,
        memory_high_bytes=3 * GIB,
        memory_max_bytes=4 * GIB,
        pids_max=1024,
        daemon_runtime_profile="build-heavy",
    ),
}


class Docker(Section):
    """The Docker provider. `gateway_instance_id` None: an id made once per state directory.
    `bundle_base_image`: the image in which the bundle is built when this machine's Python does not run on the
    engine (another system or architecture). `token_label`: true as the reference has it.
    """

    docker_endpoint: NonEmpty | None = None
    daemon_binary_path: NonEmpty | None = None
    daemon_config_yaml_path: NonEmpty | None = None
    container_daemon_binary_path: str = "/eos/bin/sandbox-daemon"
    container_daemon_config_yaml_path: str = "/eos/config/daemon.yml"
    default_image: str | None = None
    bundle_base_image: NonEmpty = "python:3.13-slim"
    container_workspace_root: str = "/workspace"
    platform: NonEmpty | None = None
    privileged: bool = False
    net_admin: bool = True
    token_label: bool = False
    daemon_port: Annotated[int, Field(ge=1, le=65535)] = 7000
    daemon_http_port: Annotated[int, Field(ge=1, le=65535)] = 7001
    gateway_instance_id: NonEmpty | None = None
    readiness_timeout_ms: Positive = 60_000
    readiness_poll_ms: Positive = 250
    connect_timeout_s: Annotated[float, Field(ge=1)] = 120
    stop_timeout_s: Annotated[float, Field(ge=0)] = 5
    port_publish_attempts: Positive = 200
    port_publish_retry_delay_ms: Annotated[int, Field(ge=0)] = 50
    resource_profile: NonEmpty = "standard"
    resource_profiles: dict[str, ResourceProfile] = Field(default_factory=dict)
    memory_bytes: Positive | None = None
    nano_cpus: Positive | None = None
    container_env: dict[str, str] = Field(default_factory=dict)

    _paths = field_validator(
        "container_daemon_binary_path", "container_daemon_config_yaml_path", "container_workspace_root"
    )(_absolute)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.daemon_port == self.daemon_http_port:
            raise ValueError("daemon_port and daemon_http_port must differ")
        if self.resource_profile not in {**BUILT_IN_PROFILES, **self.resource_profiles}:
            raise ValueError(f"resource_profile: {self.resource_profile} is not the name of a profile")
        for name in self.container_env:
            if not name or "=" in name or "\0" in name:
                raise ValueError(f"container_env: {name!r} is not the name of a variable")
        return self

    def profile(self) -> ResourceProfile:
        """Return the chosen profile with the two overrides applied. A `memory_bytes` that does not exceed the
        profile's `memory_high_bytes` sets `memory_high_bytes` to 3/4 of `memory_bytes`.
        """
        chosen = {**BUILT_IN_PROFILES, **self.resource_profiles}[self.resource_profile]
        changes: dict[str, Any] = {}
        if self.nano_cpus is not None:
            changes["nano_cpus"] = self.nano_cpus
        if self.memory_bytes is not None:
            changes["memory_max_bytes"] = self.memory_bytes
            if self.memory_bytes <= chosen.memory_high_bytes:
                changes["memory_high_bytes"] = self.memory_bytes * 3 // 4
        return chosen.model_copy(update=changes)


class ManagerConfig(Section):
    registry_path: NonEmpty | None = None
    workspace_roots: list[NonEmpty] | None = None
    max_sandboxes: Annotated[int, Field(ge=1, le=4096)] = 64
    export: Export = Export()
    base: Base = Base()
    observability_snapshot: ObservabilitySnapshot = ObservabilitySnapshot()
    local_daemon: LocalDaemon = LocalDaemon()
    docker: Docker = Docker()

    @model_validator(mode="after")
    def _profile(self) -> Self:
        name = self.local_daemon.resource_profile
        if name is not None and name not in {**BUILT_IN_PROFILES, **self.docker.resource_profiles}:
            raise ValueError(f"local_daemon.resource_profile: {name} is not the name of a profile")
        return self

    def local_profile(self) -> ResourceProfile | None:
        name = self.local_daemon.resource_profile
        return None if name is None else {**BUILT_IN_PROFILES, **self.docker.resource_profiles}[name]

    @field_validator("workspace_roots")
    @classmethod
    def _roots(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and (not value or not all(root.startswith("/") for root in value)):
            raise ValueError("must be a non-empty list of absolute paths")
        return value


class ServerConfig(Section):
    """`worker_threads` and `max_worker_threads` (the older name, an upper limit) are accepted and reported;
    the agent has one event loop.
    """

    socket_path: str = "/eos/runtime/daemon/runtime.sock"
    pid_path: str = "/eos/runtime/daemon/runtime.pid"
    worker_threads: Annotated[int, Field(ge=1, le=64)] | None = None
    max_worker_threads: Annotated[int, Field(ge=1, le=64)] | None = None
    max_blocking_threads: Annotated[int, Field(ge=1, le=256)] = 8
    blocking_thread_keep_alive_s: Annotated[float, Field(ge=0, le=300)] = 5
    max_concurrent_connections: Annotated[int, Field(ge=1, le=4096)] = 64
    max_request_bytes: Annotated[int, Field(ge=65536)] = 16 * MIB
    request_read_timeout_s: PositiveSeconds = 30

    _paths = field_validator("socket_path", "pid_path")(_absolute)

    @model_validator(mode="after")
    def _one_name(self) -> Self:
        if self.worker_threads is not None and self.max_worker_threads is not None:
            raise ValueError(
                "worker_threads and max_worker_threads are two names of one key: give one of them"
            )
        return self


class Forward(Section):
    connect_timeout_s: PositiveSeconds = 10
    response_timeout_s: PositiveSeconds = 30
    origins: list[str] = []


class Http(Section):
    auth: Literal["none", "token"] = "token"
    forward: Forward = Forward()


class NetworkConfig(Section):
    """`neighbours`: deny or allow traffic between a container and others on the same network of the
    engine.
    """

    neighbours: Literal["deny", "allow"] = "deny"


class Daemon(Section):
    server: ServerConfig = ServerConfig()
    http: Http = Http()
    network: NetworkConfig = NetworkConfig()


class Workspace(Section):
    """`rfc1918_egress: deny` makes isolated sessions unavailable, as in the reference.
    `session_memory_bytes`: free memory that a new session needs. `max_terminals`: per session, with the
    terminals of its commands; `max_open_files`: per process of a session; `max_inotify_instances`: per
    session. `left_behind_grace_s`: longest time between SIGTERM and SIGKILL for processes that run at the end
    of a session; 0: SIGKILL at once. `exit_grace_s`: a key of the reference, without effect.
    """

    layer_stack_root: str = "/eos/layer-stack"
    scratch_root: str = "/eos/workspace"
    setup_timeout_s: PositiveSeconds = 30
    runner_answer_s: PositiveSeconds = 60
    recovery_timeout_s: PositiveSeconds = 60
    exit_grace_s: Annotated[float, Field(ge=0)] = 0.25
    left_behind_grace_s: Annotated[float, Field(ge=0, le=60)] = 2
    max_sessions: Annotated[int, Field(ge=1, le=4096)] = 512
    session_memory_bytes: Annotated[int, Field(ge=MIB)] = 3 * MIB
    max_terminals: Annotated[int, Field(ge=1, le=4096)] = 64
    max_open_files: Annotated[int, Field(ge=256)] = 65536
    max_inotify_instances: Annotated[int, Field(ge=1, le=65536)] = 32
    rfc1918_egress: Literal["allow", "deny"] = "allow"

    _paths = field_validator("layer_stack_root", "scratch_root")(_absolute)


class NamespaceExecution(Section):
    scratch_root: str = "/eos/namespace_execution"
    freeze_budget_s: PositiveSeconds = 0.5
    stdin_write_deadline_s: PositiveSeconds = 2
    max_terminal_entries: Positive = 512
    max_transcript_window_bytes: Positive = MIB
    max_runner_result_bytes: Positive = 8 * MIB

    _paths = field_validator("scratch_root")(_absolute)


class AutosquashPolicies(Section):
    squash_at_n_layers: Annotated[int, Field(ge=3)] | None = None
    squash_at_shared_directory_layers: Annotated[int, Field(ge=2)] | None = None


class UnitOfFiles(Section):
    """Files that their program reads as one value: all paths below a directory matched by `root` (`.`: the
    workspace) that a pattern in `members` matches. Both are patterns over whole paths, as in `.gitignore`.
    """

    name: NonEmpty
    root: Annotated[NonEmpty, Field(max_length=256)]
    members: Annotated[
        list[Annotated[NonEmpty, Field(max_length=256)]], Field(min_length=1, max_length=100)
    ] = Field(default_factory=lambda: ["**"])


class LayerStack(Section):
    """The values `reference`, `conflict`, `merge` and false restore the behaviour of the reference."""

    remount_sweep_width: Positive = 4
    export_chunk_bytes: Positive = 2 * MIB
    spool_zstd_level: Annotated[int, Field(ge=1, le=22)] = 3
    autosquash_policies: AutosquashPolicies | None = None
    quota_bytes: Positive | None = None
    quota_layers: Positive | None = None
    units: Annotated[list[UnitOfFiles], Field(max_length=64)] = Field(
        default_factory=lambda: list[UnitOfFiles]()
    )
    reserved_names: Literal["none", "reference"] = "none"
    remount_rescue_cwd: bool = True
    merge_adjacent: Literal["conflict", "merge"] = "conflict"
    recreated_directory: Literal["unite", "conflict"] = "unite"
    git: Literal["rebase", "merge", "branch", "off"] = "rebase"
    inputs: Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=100)] = Field(
        default_factory=lambda: [".env*", "*.local"]
    )


class CommandConfig(Section):
    """`max_active_per_session` None: three quarters of `max_active`. `max_kept_output_bytes`: on disk, for
    all ended commands. `leader_grace_s`: seconds between the end of the command's leader and the return of
    the call, even when background processes are left.
    """

    max_active: Annotated[int, Field(ge=1, le=1024)] = 32
    max_active_per_session: Annotated[int, Field(ge=1, le=1024)] | None = None
    read_lines_default: Positive = 200
    read_lines_max: Positive = 1000
    max_output_bytes: Positive = 256 * 1024
    max_transcript_bytes: Annotated[int, Field(ge=10 * MIB)] = (
        64 * MIB
    )  # the first 8 MiB and the newest are kept
    max_kept_output_bytes: Annotated[int, Field(ge=MIB)] = GIB
    unknown_id: Literal["not_found", "empty_ok"] = "not_found"
    stdin_control: Literal["typed", "exact", "anywhere"] = "typed"
    signal_exit_code: Literal["shell", "negative"] = "shell"
    editor: Literal["refuse", "inherit"] = "refuse"
    environment: Literal["image", "allow_list"] = "image"
    completion: Literal["process_group", "leader"] = "process_group"
    leader_grace_s: Annotated[float, Field(ge=0)] = 0.5

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.read_lines_default > self.read_lines_max:
            raise ValueError("read_lines_default must not exceed read_lines_max")
        return self


class PublishConfig(Section):
    """`interrupted`: the work of a one-off command that a signal, a timeout or a cancellation ended."""

    interrupted: Literal["reject", "publish"] = "reject"


class File(Section):
    read_lines_default: Annotated[int, Field(ge=1, le=2000)] = 2000
    max_output_bytes: Positive = 256 * 1024
    max_edit_bytes: Positive = 4 * MIB
    max_list_entries: Positive = 2000


class Runtime(Section):
    workspace: Workspace = Workspace()
    namespace_execution: NamespaceExecution = NamespaceExecution()
    layerstack: LayerStack = LayerStack()
    command: CommandConfig = CommandConfig()
    publish: PublishConfig = PublishConfig()
    file: File = File()


class MountMask(Section):
    hidden_paths: list[str] = Field(default_factory=lambda: ["/eos"], min_length=1)

    @field_validator("hidden_paths")
    @classmethod
    def _each(cls, value: list[str]) -> list[str]:
        return [_absolute(path) for path in value]


class RunnerConfig(Section):
    mount_mask: MountMask = MountMask()
    init: Literal["auto", "python"] = "auto"


class ResourceStats(Section):
    enabled: bool = True
    sample_interval_ms: Annotated[int, Field(ge=250, le=600_000)] = 2000
    max_disk_bytes: Annotated[int, Field(ge=128 * 1024, le=4 * MIB, multiple_of=2)] = MIB


class Sampling(Section):
    max_walk_nodes: Positive = 1024
    max_walk_depth: Positive = 64


class Views(Section):
    resource_window_ms: Positive = 600_000
    layer_delta_default_limit: Positive = 500
    layer_delta_max_limit: Positive = 5000

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.layer_delta_default_limit > self.layer_delta_max_limit:
            raise ValueError("layer_delta_default_limit must not exceed layer_delta_max_limit")
        return self


class DiagnosticsConfig(Section):
    enabled: bool = True
    cpu_threshold_percent: PositiveSeconds = 2.0
    anonymous_memory_threshold_bytes: Positive = 16 * MIB
    sustained_window_ms: Positive = 30_000
    cooldown_ms: Positive = 300_000
    max_artifact_bytes: Annotated[int, Field(ge=4096, le=MIB)] = MIB


class Observability(Section):
    """`max_file_bytes` is an older key, half of `max_disk_bytes`."""

    enabled: bool = True
    max_disk_bytes: Annotated[int, Field(ge=MIB, le=16 * MIB)] = 4 * MIB
    max_line_bytes: Annotated[int, Field(ge=1, le=16384)] = 16384
    resource_stats: ResourceStats = ResourceStats()
    sampling: Sampling = Sampling()
    views: Views = Views()
    diagnostics: DiagnosticsConfig = DiagnosticsConfig()

    @model_validator(mode="before")
    @classmethod
    def _older_name(cls, value: Any) -> Any:
        if isinstance(value, dict) and "max_file_bytes" in value:
            known: dict[str, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType]
            half = known.pop("max_file_bytes")
            if "max_disk_bytes" in known or not isinstance(half, int) or isinstance(half, bool):
                raise ValueError("max_file_bytes must be an integer, and max_disk_bytes absent")
            return {**known, "max_disk_bytes": 2 * half}
        return value  # pyright: ignore[reportUnknownVariableType]


class AgentConfig(Section):
    """The four sections that the agent reads."""

    daemon: Daemon = Daemon()
    runtime: Runtime = Runtime()
    runner: RunnerConfig = RunnerConfig()
    observability: Observability = Observability()


class HostConfig(Section):
    """The two sections that the gateway reads."""

    gateway: GatewayConfig = GatewayConfig()
    manager: ManagerConfig = ManagerConfig()
