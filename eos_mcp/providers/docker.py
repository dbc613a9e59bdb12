"""Sandboxes as containers of any image, the empty one included: the agent, its interpreter and its loader
come in a volume.

    eos-rt-<sha> at /eos/bundle (ro)      eos-shared-base-<hash> at /eos/layer-stack/base (ro)
    <id>-layer-stack at /eos/layer-stack  <id>-workspace at /eos/workspace

The token is not passed as a label, a variable or an argument: it is copied into the container before the
start, and read back the same way.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
from collections.abc import Generator
from typing import Any

from agent_image import build
from eos_agent.wire import proof
from eos_agent.wire.protocol import INTERNAL_ERROR, OperationError
from eos_mcp.config.load import Config
from eos_mcp.providers import bundle_image, contents, engine, image_name, limits
from eos_mcp.providers.provider import LOG_LINES, FoundSandbox, Made, Progress, SandboxPlan
from eos_mcp.providers.volumes import Volumes, read_file
from eos_mcp.record.registry import AgentEndpoint, SandboxRecord, SharedBase
from eos_mcp.record.sample_ring import EngineSample
from layerstack.kernel.base_xattrs import Keeping

Client = Any
Container = Any
"""A container object of docker-py, whose type stubs leave most of its attributes untyped."""

BUNDLE_AT = build.MOUNTED_AT
POISON = ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GLIBC_TUNABLES", "LOCPATH", "GCONV_PATH", "LANGUAGE")
"""Variables of an image that would change the agent's loader and C library. An empty value counts as unset.
"""
WITHOUT_THE_IMAGE = {
    "LC_ALL": "C",
    "TZ": f"{BUNDLE_AT}/no-zone",
    "OPENSSL_CONF": f"{BUNDLE_AT}/no-openssl.cnf",
}
"""Settings that keep the agent's libraries from files of the image, where every command may write: locales
(which name modules to load), the time zone, the configuration of OpenSSL. A FIFO among these files would
block the start. The locale C has no files; the other settings name paths below the read-only bundle that do
not exist.
"""
MADE_BY = "eos.made_by"
"""Label of a shared volume: the id of the gateway instance that filled it and may prune it."""
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


class DockerProvider:
    """Sandboxes in containers with the label of this gateway's instance id; no other container is changed."""

    name = "docker"

    def __init__(self, config: Config, cache_dir: str, instance_id: str) -> None:
        self.config = config
        self.docker = config.manager.docker
        self.cache_dir = cache_dir
        self.instance_id = instance_id
        self._mutex = threading.Lock()
        self._client: Client = None
        self._choice: engine.EngineChoice | None = None
        self._volumes: Volumes | None = None
        self._info: dict[str, Any] = {}
        self._looked: dict[str, dict[str, Any]] = {}  # results of check_image, for the create that follows it

    def client(self) -> Client:
        """Return the client of the engine, connected at first use.

        Raises:
            OperationError: internal_error, reason docker_unreachable.
        """
        with self._mutex:
            if self._client is None:
                self._client, self._choice = engine.connect(
                    self.docker.docker_endpoint, timeout_s=self.docker.connect_timeout_s
                )
                self._info = self._client.info()
                self._volumes = Volumes(
                    self._client,
                    os.path.join(self.cache_dir, "locks"),
                    {"eos.shared": "true", MADE_BY: self.instance_id},
                    self.instance_id,
                )
            return self._client

    @contextlib.contextmanager
    def _engine(self, what: str) -> Generator[Client]:
        """Turn a failure of the engine in the block into an internal_error that names the step `what`."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException

        client = self.client()
        try:
            yield client
        except APIError as error:
            raise engine.refused(what, str(error.explanation or error)) from error
        except (DockerException, RequestException) as error:
            assert self._choice is not None
            if (
                isinstance(error, RequestException)
                and not isinstance(error.__cause__, OSError)
                and "Connection" not in str(error)
            ):
                raise OperationError(INTERNAL_ERROR, f"{what}: {error}", reason="docker_failed") from error
            engine.unreachable(self._choice, error)

    def keeping(self) -> Keeping:
        """Return `ALL`, or less when the engine runs in a user namespace: it cannot write access control
        lists with users outside the namespace.
        """
        self.client()
        options = str(self._info.get("SecurityOptions"))
        return Keeping(acls="name=rootless" not in options and "name=userns" not in options)

    def check_image(self, image: str) -> None:
        self._looked[image] = self._image(image)

    def _image(self, image: str) -> dict[str, Any]:
        """Inspect an image.

        Raises:
            OperationError: invalid_request, reason bad_image, for an invalid name; internal_error, reason
                image_not_found.
        """
        from docker.errors import APIError, ImageNotFound

        image_name.check_reference(image)
        with self._engine("looking at the image") as client:
            try:
                attributes: dict[str, Any] = client.images.get(image).attrs
            except APIError as error:
                if error.status_code == 400:
                    raise image_name.bad_image(image, f"the engine says: {error.explanation}") from error
                if not isinstance(error, ImageNotFound):
                    raise
                hint = (
                    f"run `docker pull {image}` first, since create_sandbox pulls none, or take a "
                    f"local image; host needs no Docker"
                )
                message = f"no such image: {image}; {hint}"
                raise OperationError(
                    INTERNAL_ERROR, message, {"image": image, "hint": hint}, reason="image_not_found"
                ) from error
        return attributes

    def images(self) -> list[str]:
        """List every tag; for an image without tags its repo digest or its id."""
        with self._engine("listing images") as client:
            listed: list[dict[str, Any]] = client.api.images(all=True)
        found: set[str] = set()
        for entry in listed:
            tags = [tag for tag in _texts(entry.get("RepoTags")) if tag != "<none>:<none>"]
            digests = [
                digest for digest in _texts(entry.get("RepoDigests")) if not digest.startswith("<none>")
            ]
            found.update(tags or digests or [str(entry["Id"])])
        return sorted(found)

    def create(self, plan: SandboxPlan, progress: Progress) -> Made:
        image = self._looked.pop(plan.image, None) or self._image(plan.image)
        with self._engine("creating the container"):
            with contextlib.ExitStack() as undo:
                undo.callback(self._undo, plan.sandbox_id)
                container = self._make_whole(plan, image, progress)
                container.put_archive(
                    "/",
                    contents.archive(
                        plan, self.docker, image, limits.of_profile(self.docker.profile(), self._nano_cpus())
                    ),
                )
                progress("starting daemon")
                container.start()
                daemon, http = self._published(container)
                undo.pop_all()
        base_at = f"{contents.stack_root(plan)}/base"
        base = SharedBase(source=plan.base.source, target=base_at, root_hash=plan.base.root_hash)
        return Made(
            daemon,
            http,
            base,
            self.docker.profile().to_json(self.docker.resource_profile),
            {"container": container.id, "proves": True},
        )

    def _make_whole(self, plan: SandboxPlan, image: dict[str, Any], progress: Progress) -> Container:
        """Create the sandbox. Repeat once if a shared volume was pruned after it was filled and before the
        container used it.
        """
        container, shared = self._make(plan, image, progress)
        assert self._volumes is not None
        if self._volumes.whole(*shared):
            return container
        container.remove(v=True, force=True)
        self._volumes.drop_empty(*shared)
        return self._make(plan, image, progress)[0]

    def _make(
        self, plan: SandboxPlan, image: dict[str, Any], progress: Progress
    ) -> tuple[Container, tuple[str, str]]:
        client, volumes = self.client(), self._volumes
        assert volumes is not None
        progress("installing daemon assets")
        bundle = volumes.bundle(self._bundle(str(image.get("Architecture") or "")), plan.image)
        base = volumes.base(plan.base.root_hash, plan.base.path, plan.image)
        progress(f"base mounted: {base}")
        docker, profile = self.docker, self.docker.profile()
        stack_root = contents.stack_root(plan)
        ports = {
            f"{docker.daemon_port}/tcp": ("127.0.0.1", 0),
            f"{docker.daemon_http_port}/tcp": ("127.0.0.1", 0),
        }
        container = client.containers.create(
            plan.image,
            name=plan.sandbox_id,
            entrypoint=[*build.daemon_argv(BUNDLE_AT), "serve", "--settings", contents.SETTINGS_AT],
            user="0:0",
            working_dir="/",
            init=True,
            cap_add=["SYS_ADMIN", *(["NET_ADMIN"] if docker.net_admin else [])],
            security_opt=["apparmor=unconfined", "no-new-privileges"],
            privileged=docker.privileged,
            cgroupns="private",
            restart_policy={"Name": "unless-stopped"},
            stop_signal="SIGTERM",
            healthcheck={"test": ["NONE"]},
            nano_cpus=self._nano_cpus(),
            mem_limit=profile.memory_max_bytes,
            mem_reservation=profile.memory_high_bytes,
            pids_limit=profile.pids_max + (limits.RUNNER_PIDS if profile.separate_workload_cgroup else 0),
            platform=docker.platform,
            ports=ports,
            environment={**docker.container_env, **dict.fromkeys(POISON, ""), **WITHOUT_THE_IMAGE},
            labels=contents.labels(plan, self.docker, self.instance_id),
            volumes={
                f"{plan.sandbox_id}-layer-stack": {"bind": stack_root, "mode": "rw,nocopy"},
                f"{plan.sandbox_id}-workspace": {
                    "bind": plan.sections["runtime"]["workspace"]["scratch_root"],
                    "mode": "rw,nocopy",
                },
                base: {"bind": f"{stack_root}/base", "mode": "ro,nocopy"},
                bundle: {"bind": BUNDLE_AT, "mode": "ro,nocopy"},
            },
        )
        return container, (bundle, base)

    def _nano_cpus(self) -> int:
        """Return the limits of the profile, as far as the engine's machine has the resources."""
        cpus, wanted = int(self._info.get("NCPU") or 0), self.docker.profile().nano_cpus
        return min(wanted, cpus * 10**9) if cpus else wanted

    def _bundle(self, architecture: str) -> build.Bundle:
        """Return the bundle for the engine: built from this machine's Python, or from `bundle_base_image`
        when this Python does not run on the engine.
        """
        engine_machine = str(self._info.get("Architecture") or platform.machine())
        wanted = ARCHITECTURES.get(architecture, engine_machine)
        try:
            if platform.system() == "Linux" and wanted == platform.machine():
                return build.build(os.path.join(self.cache_dir, "bundles"))
            self._image(self.docker.bundle_base_image)
            with self._engine("building the bundle") as client:
                return bundle_image.build_in(
                    client, self.docker.bundle_base_image, os.path.join(self.cache_dir, "bundles")
                )
        except build.BuildError as error:
            raise OperationError(
                INTERNAL_ERROR, f"the agent's runtime cannot be made: {error}", reason="bundle_failed"
            ) from error

    def _published(self, container: Container) -> tuple[AgentEndpoint, AgentEndpoint]:
        """Return the two published ports.

        Raises:
            OperationError: internal_error when the engine publishes none within the configured attempts, or
                the container has ended.
        """
        for _ in range(self.docker.port_publish_attempts):
            container.reload()
            ports = self._ports(container)
            if ports is not None:
                return ports
            if container.status in ("exited", "dead"):
                break
            time.sleep(self.docker.port_publish_retry_delay_ms / 1000)
        log = self._tail(container)
        details = {"stage": "port publish", "container_state": container.status, "daemon_log": log}
        said = f": {log[-1]}" if log else ""
        raise OperationError(
            INTERNAL_ERROR,
            f"publishing the ports of {container.name}: the container is {container.status}{said}",
            details,
            reason="no_ports",
        )

    def _ports(self, container: Container) -> tuple[AgentEndpoint, AgentEndpoint] | None:
        if container.status != "running":
            return None
        labels = container.labels
        published: dict[str, Any] = container.attrs["NetworkSettings"]["Ports"] or {}
        found: list[AgentEndpoint] = []
        for key, default in (
            ("eos.daemon_port", self.docker.daemon_port),
            ("eos.daemon_http_port", self.docker.daemon_http_port),
        ):
            bindings: list[dict[str, str]] | None = published.get(f"{labels.get(key, default)}/tcp")
            if not bindings:
                return None
            host = bindings[0].get("HostIp") or "127.0.0.1"
            found.append(
                AgentEndpoint(
                    host="127.0.0.1" if host in ("0.0.0.0", "::") else host, port=int(bindings[0]["HostPort"])
                )
            )
        return found[0], found[1]

    def exited(self, record: SandboxRecord) -> str | None:
        container = self._container(record.id)
        if container is None:
            return "the container is gone"
        if container.status in ("exited", "dead"):
            return f"the container has exited with {container.attrs['State'].get('ExitCode')}"
        if int(container.attrs.get("RestartCount") or 0) > 2:
            return "the agent keeps exiting"
        return None

    def log_tail(self, record: SandboxRecord) -> list[str]:
        container = self._container(record.id)
        return [] if container is None else self._tail(container)

    def _tail(self, container: Container) -> list[str]:
        with self._engine("reading the container's log"):
            text = container.logs(tail=LOG_LINES).decode("utf-8", "replace")
        lines: list[str] = text.splitlines()
        return lines

    def _container(self, sandbox_id: str) -> Container | None:
        """Return the container of this sandbox, if its labels are of this instance."""
        from docker.errors import NotFound

        with self._engine("looking at the container") as client:
            try:
                container = client.containers.get(sandbox_id)
            except NotFound:
                return None
        labels = container.labels
        return (
            container
            if labels.get("eos.sandbox_id") == sandbox_id
            and labels.get("eos.gateway_instance_id") == self.instance_id
            else None
        )

    def find(self, record: SandboxRecord) -> FoundSandbox | None:
        container = self._container(record.id)
        if container is None:
            return None
        ports = self._ports(container)
        return (
            FoundSandbox(False, paused=container.status == "paused")
            if ports is None
            else FoundSandbox(True, ports[0], ports[1])
        )

    def revive(self, record: SandboxRecord) -> FoundSandbox | None:
        container = self._container(record.id)
        if container is None:
            return None
        with self._engine("starting the container"):
            if container.status in ("exited", "created"):
                container.start()
            elif container.status == "paused":
                container.unpause()
            elif (ports := self._ports(container)) is not None:
                return FoundSandbox(True, ports[0], ports[1])
            daemon, http = self._published(container)
        return FoundSandbox(True, daemon, http)

    def replace(self, record: SandboxRecord) -> None:
        container = self._container(record.id)
        if container is not None:
            with self._engine("restarting the container"):
                container.restart(timeout=0)

    def is_frozen(self, record: SandboxRecord) -> bool:
        """Return False: `revive` unpauses a paused container, and the host cannot see other reasons."""
        return False

    def usage(self, record: SandboxRecord) -> EngineSample | None:
        """Read the engine's figures once; without `one_shot` the engine would wait a second for a second
        sample.
        """
        with self._engine("reading the container's figures") as client:
            stats: dict[str, Any] = client.api.stats(record.id, stream=False, one_shot=True)
        return sample_of(stats, int(time.time() * 1000))

    def destroy(self, record: SandboxRecord) -> list[str]:
        return self._remove(record.id, stop=True)

    def _remove(self, sandbox_id: str, *, stop: bool) -> list[str]:
        from docker.errors import APIError, NotFound
        from requests.exceptions import RequestException

        warnings: list[str] = []
        container = self._container(sandbox_id)
        with self._engine("removing the container") as client:
            if container is not None:
                if stop and container.status == "running":
                    try:
                        container.stop(timeout=int(self.docker.stop_timeout_s))
                    except NotFound:
                        pass
                    except (APIError, RequestException) as error:
                        warnings.append(f"stopping the agent: {error}; removed by force")
                try:
                    container.remove(force=True, v=True)
                except NotFound:
                    pass
                except APIError as error:
                    if error.status_code != 409 or "already in progress" not in str(error):
                        raise
                    self._until_gone(container)
            for suffix in ("layer-stack", "workspace"):
                with contextlib.suppress(NotFound):
                    client.volumes.get(f"{sandbox_id}-{suffix}").remove(force=True)
        return warnings

    def _until_gone(self, container: Container) -> None:
        from docker.errors import NotFound

        with contextlib.suppress(NotFound):
            for _ in range(200):
                container.reload()
                time.sleep(0.05)

    def _undo(self, sandbox_id: str) -> None:
        with contextlib.suppress(OperationError):
            self._remove(sandbox_id, stop=False)

    def unused_volumes(self) -> list[str]:
        """List the shared volumes that this instance made and no container uses."""
        with self._engine("looking for unused volumes") as client:
            volumes = client.volumes.list(
                filters={"dangling": True, "label": f"{MADE_BY}={self.instance_id}"}
            )
        return sorted(str(volume.name) for volume in volumes)

    def remove_volume(self, name: str) -> None:
        """Remove a shared volume; the engine refuses when a container uses it.

        Raises:
            OperationError: internal_error, reason docker_failed.
        """
        with self._engine(f"removing volume {name}"):
            assert self._volumes is not None
            self._volumes.remove(name)

    def data_roots(self) -> list[str]:
        """Return the data directories that the engine reported; empty before the first connection."""
        root: Any = (self._info or {}).get("DockerRootDir")
        return (
            [root]
            if isinstance(root, str)
            and root.strip("/")
            and self._choice is not None
            and self._choice.endpoint.startswith("unix://")
            else []
        )

    def adopt(self) -> list[SandboxRecord]:
        """Find the running containers of this instance id, and read each token from the container's token
        file.
        """
        records: list[SandboxRecord] = []
        with self._engine("looking for containers") as client:
            if self._volumes is not None:
                self._volumes.sweep()
            for container in client.containers.list(
                all=True,
                filters={"label": f"eos.gateway_instance_id={self.instance_id}"},
                ignore_removed=True,
            ):
                ports = self._ports(container)
                if ports is not None:
                    with contextlib.suppress(KeyError, ValueError, self._not_found()):
                        records.append(self._record_of(container, ports))
        return records

    def _not_found(self) -> type[Exception]:
        from docker.errors import NotFound

        return NotFound

    def _record_of(self, container: Container, ports: tuple[AgentEndpoint, AgentEndpoint]) -> SandboxRecord:
        labels = container.labels
        token = labels.get("eos.auth_token") or read_file(container, contents.TOKEN_AT).decode().strip()
        profile = {
            key.removeprefix("eos.resource."): json.loads(value)
            for key, value in labels.items()
            if key.startswith("eos.resource.")
        }
        return SandboxRecord(
            id=labels["eos.sandbox_id"],
            workspace_root=labels["eos.host_workspace_root"],
            state="ready",
            daemon=ports[0],
            daemon_http=ports[1],
            shared_base=SharedBase(
                source=labels["eos.shared_base.source"],
                target=labels["eos.shared_base.target"],
                root_hash=labels["eos.shared_base.root_hash"],
                readonly=labels["eos.shared_base.readonly"] == "true",
            ),
            resource_profile={"name": labels["eos.resource_profile"], **profile},
            quota=json.loads(labels.get("eos.quota", "null")),
            provider="docker",
            image=labels.get("eos.image", ""),
            token=token,
            created_unix_ms=int(labels["eos.created_at"]),
            provider_data={"container": container.id, "proves": labels.get("eos.proof") == str(proof.FORMAT)},
        )

    def close(self) -> None:
        with self._mutex:
            if self._client is not None:
                self._client.close()
                self._client = None


def sample_of(stats: dict[str, Any], ts: int) -> EngineSample | None:
    """Convert the engine's `GET /containers/{id}/stats` to a sample; None for a container that does not
    run.
    """
    memory = _table(stats, "memory_stats")
    cpu = _table(_table(stats, "cpu_stats"), "cpu_usage").get("total_usage")
    if not memory.get("usage"):
        return None
    moved = {"read": 0, "write": 0}
    entries: list[dict[str, Any]] | None = _table(stats, "blkio_stats").get("io_service_bytes_recursive")
    for entry in [] if entries is None else entries:
        name = str(entry.get("op")).lower()
        if name in moved:
            moved[name] += int(entry.get("value") or 0)
    return EngineSample(
        ts,
        None if cpu is None else int(cpu) // 1000,
        moved["read"],
        moved["write"],
        int(memory["usage"]),
        memory.get("limit"),
    )


def _table(stats: dict[str, Any], key: str) -> dict[str, Any]:
    found: dict[str, Any] | None = stats.get(key)
    return {} if found is None else found


def _texts(value: list[str] | None) -> list[str]:
    return value or []
