"""The configuration document: strict, with defaults, and every mistake named by its key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from eos_mcp.config import load as config
from eos_mcp.config.load import ConfigError

PRD = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "config", "prd.yml"
)


def load(folder: Path, text: str) -> config.Config:
    path = folder / "eos.yml"
    path.write_text(text)
    return config.load(str(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("surprise: 1", "surprise: unknown field"),
        ("manager: {docker: {nope: 1}}", "manager.docker.nope: unknown field"),
        ("manager: {export: {nope: 1}}", "manager.export.nope: unknown field"),
        ("gateway: {nope: 1}", "gateway.nope: unknown field"),
        ("gateway: {max_concurrent_connections: 0}", "gateway.max_concurrent_connections: "),
        ("gateway: {bind_addr: nonsense}", "gateway.bind_addr: must be HOST:PORT"),
        ("manager: {docker: {readiness_timeout_ms: 0}}", "manager.docker.readiness_timeout_ms: "),
        ("manager: {docker: {readiness_timeout_ms: '60'}}", "manager.docker.readiness_timeout_ms: "),
        ("manager: {docker: {privileged: 1}}", "manager.docker.privileged: "),
        (
            "manager: {docker: {daemon_port: 7001}}",
            "manager.docker: daemon_port and daemon_http_port must differ",
        ),
        (
            "manager: {docker: {container_workspace_root: ws}}",
            "manager.docker.container_workspace_root: must be an absolute path",
        ),
        (
            "manager: {docker: {resource_profile: huge}}",
            "manager.docker: resource_profile: huge is not the name of a profile",
        ),
        ("manager: {docker: {gateway_instance_id: ''}}", "manager.docker.gateway_instance_id: "),
        ("manager: {workspace_roots: []}", "manager.workspace_roots: must be a non-empty list"),
        ("manager: {workspace_roots: [relative]}", "manager.workspace_roots: must be a non-empty list"),
        ("manager: {export: {max_apply_entries: 0}}", "manager.export.max_apply_entries: "),
        ("manager: [1]", "manager: "),
        ("- 1", "the configuration must be a mapping"),
        ("a: [", "the configuration is not YAML"),
    ],
)
def test_a_mistake_in_the_gateways_sections_keeps_it_from_starting_and_names_the_key(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("daemon: {server: {nope: 1}}", "daemon.server.nope: unknown field"),
        (
            "runtime: {workspace: {layer_stack_root: relative}}",
            "runtime.workspace.layer_stack_root: must be an absolute path",
        ),
        (
            "runtime: {workspace: {layer_stack_root: /}}",
            "runtime.workspace.layer_stack_root: must not be the filesystem root",
        ),
        ("runtime: {workspace: {setup_timeout_s: 0}}", "runtime.workspace.setup_timeout_s: "),
        ("runtime: {workspace: {exit_grace_s: -1}}", "runtime.workspace.exit_grace_s: "),
        (
            "runtime: {layerstack: {autosquash_policies: {squash_at_n_layers: 2}}}",
            "runtime.layerstack.autosquash_policies.squash_at_n_layers: ",
        ),
        ("runtime: {layerstack: {units: [{name: x}]}}", "runtime.layerstack.units[0].root: "),
        (
            "runtime: {layerstack: {units: [{name: x, root: a, members: []}]}}",
            "runtime.layerstack.units[0].members: ",
        ),
        ("runtime: {layerstack: {quota_bytes: 0}}", "runtime.layerstack.quota_bytes: "),
        ("runtime: {layerstack: {quota_layers: many}}", "runtime.layerstack.quota_layers: "),
        ("runtime: {command: {max_active: 1025}}", "runtime.command.max_active: "),
        ("runtime: {command: {max_transcript_bytes: 10485759}}", "runtime.command.max_transcript_bytes: "),
        (
            "runtime: {command: {read_lines_default: 1001}}",
            "runtime.command: read_lines_default must not exceed",
        ),
        ("runtime: {file: {read_lines_default: 2001}}", "runtime.file.read_lines_default: "),
        ("runner: {mount_mask: {hidden_paths: []}}", "runner.mount_mask.hidden_paths: "),
        (
            "runner: {mount_mask: {hidden_paths: [eos]}}",
            "runner.mount_mask.hidden_paths: must be an absolute path",
        ),
        ("daemon: {server: {max_request_bytes: 65535}}", "daemon.server.max_request_bytes: "),
        (
            "daemon: {server: {worker_threads: 2, max_worker_threads: 2}}",
            "daemon.server: worker_threads and max_worker_threads",
        ),
        ("observability: {max_disk_bytes: 1}", "observability.max_disk_bytes: "),
        (
            "observability: {resource_stats: {max_disk_bytes: 131073}}",
            "observability.resource_stats.max_disk_bytes: ",
        ),
        (
            "observability: {views: {layer_delta_default_limit: 6000}}",
            "observability.views: layer_delta_default_limit",
        ),
    ],
)
def test_a_mistake_in_the_agents_sections_is_found_when_they_are_read_and_not_before(
    tmp_path: Path, text: str, said: str
) -> None:
    loaded = load(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        config.agent_sections(loaded.daemon_yaml())
    assert str(caught.value).startswith(said)


def test_every_mistake_is_listed_not_only_the_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "gateway: {a: 1, b: 2}")
    assert str(caught.value).splitlines() == [
        "gateway.a: unknown field (line 1)",
        "gateway.b: unknown field (line 1)",
    ]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("manager:\n  docker:\n    nope: 1\n", 3, "manager.docker.nope: unknown field (line 3)"),
        ("manager: {}\n\nmanager: {}\n", 3, "manager: is given twice, first in line 1 (line 3)"),
        (
            "gateway:\n  idle_exit_s: 1\n  idle_exit_s: 2\n",
            3,
            "gateway.idle_exit_s: is given twice, first in line 2 (line 3)",
        ),
        ("manager:\n  workspace_roots:\n  - /a\n  - relative\n", 2, "manager.workspace_roots: "),
        ("manager:\n\tdocker: {}\n", None, "the configuration is not YAML: "),
        ("[" * 20000, None, "the configuration cannot be read as YAML: it is nested too deeply"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, line: int | None, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert (caught.value.line, caught.value.message[: len(said)]) == (line, said)
    assert line is None or f"(line {line})" in caught.value.message


def test_what_a_create_would_refuse_is_known_before_it_with_file_and_line(tmp_path: Path) -> None:
    loaded = load(tmp_path, "runtime:\n  command:\n    max_activ: 3\n")
    assert loaded.agent_problem() == f"{tmp_path}/eos.yml: runtime.command.max_activ: unknown field (line 3)"
    (tmp_path / "eos.yml").write_text("runtime: {}\n")
    assert loaded.agent_problem() is None
    (tmp_path / "eos.yml").unlink()
    assert (
        loaded.agent_problem()
        == f"manager.docker.daemon_config_yaml_path: {tmp_path}/eos.yml: No such file or directory"
    )


def test_the_agents_sections_are_read_anew_each_time(tmp_path: Path) -> None:
    loaded = load(
        tmp_path, "runtime: {command: {max_active: 3, max_transcript_bytes: 20000000, completion: leader}}"
    )
    found = config.agent_sections(loaded.daemon_yaml())["runtime"]["command"]
    assert (found["max_active"], found["max_transcript_bytes"], found["completion"]) == (
        3,
        20_000_000,
        "leader",
    )
    (tmp_path / "eos.yml").write_text("runtime: {command: {max_active: 5}}")
    assert config.agent_sections(loaded.daemon_yaml())["runtime"]["command"]["max_active"] == 5
    (tmp_path / "eos.yml").unlink()
    with pytest.raises(ConfigError, match="daemon_config_yaml_path"):
        loaded.daemon_yaml()


def test_absent_and_empty_sections_have_their_defaults(tmp_path: Path) -> None:
    loaded = load(tmp_path, "runner:\nmanager:\n")
    assert loaded.manager.docker.readiness_timeout_ms == 60000
    assert loaded.runner.mount_mask.hidden_paths == ["/eos"]
    sections: dict[str, Any] = config.agent_sections(b"")
    assert sections["runtime"]["layerstack"]["autosquash_policies"] is None
    assert sections["daemon"]["http"]["auth"] == "token"
    assert set(sections) == {"daemon", "runtime", "runner", "observability"}


def test_the_product_roots_document_is_valid_and_sets_what_the_design_says() -> None:
    loaded = config.load(PRD)
    assert loaded.gateway.bind_addr == "127.0.0.1:7878"
    assert loaded.manager.docker.gateway_instance_id == "eos-gateway"
    policies = loaded.runtime.layerstack.autosquash_policies
    built_in = config.load(None).runtime.layerstack.autosquash_policies
    assert policies == built_in and policies is not None
    assert (policies.squash_at_n_layers, policies.squash_at_shared_directory_layers) == (100, 16)
    config.check_profile_fits(loaded.agent, loaded.manager.docker.profile().daemon_runtime_profile)


def test_the_built_in_document_listens_on_no_port_and_leaves_the_instance_id_to_be_minted() -> None:
    built_in = config.load(None)
    assert built_in.gateway.bind_addr is None
    assert built_in.manager.docker.gateway_instance_id is None


def test_relative_paths_start_at_the_yaml_or_where_the_caller_says(tmp_path: Path) -> None:
    text = "manager: {registry_path: state/r.json, docker: {daemon_config_yaml_path: d.yml}}"
    loaded = load(tmp_path, text)
    assert loaded.manager.registry_path == str(tmp_path / "state/r.json")
    elsewhere = config.load(str(tmp_path / "eos.yml"), relative_to="/srv/product")
    assert elsewhere.manager.docker.daemon_config_yaml_path == "/srv/product/d.yml"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("daemon: {server: {worker_threads: 3}}", "daemon.server.worker_threads"),
        ("daemon: {server: {max_blocking_threads: 9}}", "daemon.server.max_blocking_threads"),
        ("daemon: {server: {max_concurrent_connections: 65}}", "daemon.server.max_concurrent_connections"),
        ("runtime: {command: {max_active: 33}}", "runtime.command.max_active"),
    ],
)
def test_a_daemon_document_beyond_the_resource_profile_is_refused_by_name(text: str, field: str) -> None:
    agent = config.agent_config(text.encode())
    with pytest.raises(ConfigError) as caught:
        config.check_profile_fits(agent, "standard")
    assert caught.value.field == field


def test_the_standard_profile_has_the_contracts_numbers() -> None:
    profile = config.load(None).manager.docker.profile().to_json("standard")
    assert (profile["nano_cpus"], profile["memory_high_bytes"], profile["memory_max_bytes"]) == (
        10**9,
        384 << 20,
        512 << 20,
    )
    assert (profile["pids_max"], profile["workload_pids_max"], profile["control_plane_pids_reserve"]) == (
        256,
        224,
        32,
    )
    assert profile["workload_memory_max_bytes"] == profile["memory_high_bytes"]


def test_a_single_memory_limit_below_the_profiles_high_mark_lowers_the_mark(tmp_path: Path) -> None:
    profile = load(tmp_path, "manager: {docker: {memory_bytes: 268435456}}").manager.docker.profile()
    assert profile.memory_max_bytes == 268435456
    assert profile.memory_high_bytes < profile.memory_max_bytes


def test_numbers_are_read_as_people_write_them(tmp_path: Path) -> None:
    assert (
        config.agent_config(
            b"runtime: {workspace: {setup_timeout_s: 1e-9}}"
        ).runtime.workspace.setup_timeout_s
        == 1e-9
    )
    assert load(tmp_path, "manager: {export: {directory_mode: 0700}}").manager.export.directory_mode == "0700"
    assert (
        config.agent_config(b"observability: {max_file_bytes: 1048576}").observability.max_disk_bytes
        == 2097152
    )


def test_the_document_that_the_page_shows_is_one(tmp_path: Path) -> None:
    page = Path(PRD).parent.parent.joinpath("docs", "configuration.md").read_text()
    shown = load(tmp_path, page.split("```yaml\n")[1].split("```")[0])
    agent = config.agent_config(shown.daemon_yaml())
    config.check_profile_fits(agent, shown.manager.docker.profile().daemon_runtime_profile)
    assert (agent.runtime.layerstack.quota_layers, shown.manager.docker.profile().pids_max) == (400, 1024)
    assert shown.manager.local_profile() is not None
