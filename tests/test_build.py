"""The bundle: made from this machine's Python, the same bytes each time, complete by itself."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable

import pytest

from agent_image import build, native_init
from tests import one_bundle

IMPORTS = (
    "import asyncio, ctypes, hashlib, json, tarfile, zlib, layerstack.kernel.syscalls, "
    "layerstack.store, eos_agent.__main__, eos_agent.http.peer, sys"
)


@pytest.fixture(scope="module")
def bundle() -> build.Bundle:
    return one_bundle.made()


def run(argv: list[str], *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, env=env or {}, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )


def test_the_name_of_the_tree_is_its_hash(bundle: build.Bundle) -> None:
    assert os.path.basename(bundle.path) == bundle.sha == build.tree_hash(bundle.path)


def test_the_bundle_has_h11_with_its_licence_and_nothing_of_the_distribution(bundle: build.Bundle) -> None:
    folder, lib = [], os.path.join(bundle.path, "lib")
    for where, _, names in os.walk(lib):
        folder += [(where, name) for name in names if os.path.basename(where) == "h11"]
    assert "LICENSE.txt" in [name for _, name in folder]
    assert {os.path.splitext(name)[1] for _, name in folder} == {".py", ".txt"}
    assert not [name for name in os.listdir(os.path.dirname(folder[0][0])) if name.endswith("-info")]


def test_a_second_build_makes_nothing(
    bundle: build.Bundle, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = one_bundle.own_cache(bundle, os.path.join(str(tmp_path), "bundles"))

    def refuse(out: str) -> list[list[object]]:
        raise AssertionError(f"made {out}")

    monkeypatch.setattr(build, "make", refuse)
    assert build.build(cache) == build.Bundle(os.path.join(cache, bundle.sha), bundle.sha)


def test_a_change_in_a_package_makes_another_bundle(
    bundle: build.Bundle, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = os.path.join(str(tmp_path), "eos_agent")
    found = build._package_root
    shutil.copytree(found("eos_agent"), copy)
    with open(os.path.join(copy, "wire", "protocol.py"), "a") as file:
        file.write("CHANGED = True\n")
    monkeypatch.setattr(build, "_package_root", lambda name: copy if name == "eos_agent" else found(name))
    changed = build.build(one_bundle.own_cache(bundle, os.path.join(str(tmp_path), "bundles")))
    assert changed.sha != bundle.sha
    done = run(
        [*build.python_argv(changed.path), "-c", "import eos_agent.wire.protocol as p; print(p.CHANGED)"]
    )
    assert done.stdout == "True\n", done.stderr


def test_the_interpreter_finds_everything_inside_the_bundle_and_nothing_outside(bundle: build.Bundle) -> None:
    done = run(
        [
            *build.python_argv(bundle.path),
            "-c",
            f"{IMPORTS}; print(*sys.path, sep='\\n'); print(hashlib.sha256(b'').hexdigest())",
        ]
    )
    assert done.returncode == 0, done.stderr
    *paths, digest = done.stdout.split()
    assert all(path.startswith(bundle.path + "/") for path in paths)
    assert digest == hashlib.sha256(b"").hexdigest()


def test_every_mapped_library_lies_inside_the_bundle(bundle: build.Bundle) -> None:
    code = (
        f"{IMPORTS}; print(*sorted({{line.split()[5] for line in open('/proc/self/maps') if '/' in "
        f"line}}), sep='\\n')"
    )
    done = run([*build.python_argv(bundle.path), "-c", code], env={"LANG": "C.UTF-8"})
    assert done.returncode == 0, done.stderr
    outside = [
        path
        for path in done.stdout.split()
        if not path.startswith(bundle.path + "/") and "locale" not in path and "gconv" not in path
    ]
    assert outside == []


def test_the_tree_works_from_another_place(bundle: build.Bundle, tmp_path: object) -> None:
    moved = os.path.join(str(tmp_path), "moved")
    shutil.copytree(bundle.path, moved)
    done = run([*build.python_argv(moved), "-c", IMPORTS])
    assert done.returncode == 0, done.stderr


def test_files_have_steady_times_and_modes_and_byte_code_that_no_clock_invalidates(
    bundle: build.Bundle,
) -> None:
    byte_code = 0
    for relative, path, status in build._walk(bundle.path):
        if stat.S_ISREG(status.st_mode):
            assert status.st_mtime == build.STEADY_TIME, relative
            assert stat.S_IMODE(status.st_mode) in (0o644, 0o755)
            if relative.endswith(".pyc"):
                with open(path, "rb") as file:
                    assert file.read(8)[4:] == b"\x01\0\0\0", (
                        f"{relative} is checked against its source's time"
                    )
                byte_code += 1
    assert byte_code > 100


def test_the_loader_preloads_nothing_that_a_file_of_the_image_names(bundle: build.Bundle) -> None:
    with open(f"{bundle.path}/ld.so", "rb") as file:
        loader = file.read()
    assert build.PRELOAD_OF_GLIBC not in loader
    assert (build.PRELOAD_OF_OURS in loader) == (b"ld.so.cache" in loader), (
        "glibc, but its name for the file is another one now"
    )


@pytest.mark.needs("cc")
def test_the_bundle_has_the_native_init_where_a_compiler_is(bundle: build.Bundle) -> None:
    (path,) = [
        path
        for relative, path, _ in build._walk(bundle.path)
        if relative.endswith(f"eos_agent/init/{native_init.NAME}")
    ]
    done = run([path, "--version"])
    assert (done.returncode, done.stdout) == (0, native_init.SAYS.decode()) and os.stat(path).st_mode & 0o111


def test_a_compiler_that_fails_leaves_no_native_init(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = os.path.join(str(tmp_path), native_init.NAME)
    monkeypatch.setattr(native_init, "COMPILERS", ("false", "no-such-compiler"))
    assert not native_init.make(build._init_source(), target) and not os.path.exists(target)


def test_the_daemon_script_starts_the_agent(bundle: build.Bundle) -> None:
    done = run([*bundle.argv(), "--version"])
    assert done.returncode == 0
    assert done.stdout.startswith("sandbox-daemon ")


def test_a_record_of_a_library_that_was_upgraded_is_not_believed(
    bundle: build.Bundle, tmp_path: object
) -> None:
    folder = os.path.dirname(bundle.path)
    (record,) = [name for name in os.listdir(folder) if name == f"key-{build._input_key()}.json"]
    with open(os.path.join(folder, record)) as file:
        value = json.load(file)
    value["inputs"][0][2] += 1
    changed = os.path.join(str(tmp_path), record)
    with open(changed, "w") as file:
        json.dump(value, file)
    assert build._recorded(changed, folder) is None
    assert build._recorded(os.path.join(folder, record), folder) == bundle


@pytest.mark.needs("busybox")
def test_a_static_interpreter_has_no_loader() -> None:
    busybox = shutil.which("busybox")
    assert busybox is not None
    with open(busybox, "rb") as file:
        static = b"/ld-" not in file.read(4096)
    assert (build._elf_interpreter(busybox) is None) is static


def test_a_file_that_is_no_program_is_named(tmp_path: object) -> None:
    path = os.path.join(str(tmp_path), "text")
    with open(path, "w") as file:
        file.write("#!/bin/sh\n" * 20)
    with pytest.raises(build.BuildError, match="text"):
        build._elf_interpreter(path)


def test_the_program_writes_the_same_bytes_from_nothing_and_prints_their_hash(
    bundle: build.Bundle, tmp_path: object
) -> None:
    out = os.path.join(str(tmp_path), "tree")
    done = run(
        [sys.executable, "-m", "agent_image.build", out],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == bundle.sha == build.tree_hash(out)
    first, second = hashlib.sha256(), hashlib.sha256()
    for digest, path in ((first, bundle.path), (second, out)):
        for piece in build.archive(path):
            digest.update(piece)
    assert first.digest() == second.digest()
    assert build.main([]) == 2


@pytest.mark.needs("dockerd")
def test_the_dockerfile_makes_one_from_the_python_of_an_image_without_a_network(
    tmp_path: object, image: Callable[[str], str]
) -> None:
    import docker

    from eos_mcp.providers import bundle_image

    client = docker.from_env()
    try:
        reference = image("debian")
        before = {found.id for found in client.images.list(all=True)}
        built = bundle_image.build_in(client, reference, str(tmp_path))
        left = [found for found in client.images.list(all=True) if found.id not in before]
        assert [found for found in left if "eos.bundle.build" in (found.labels or {})] == []
    finally:
        client.close()
    assert build.tree_hash(built.path) == built.sha
    assert os.path.exists(os.path.join(built.path, "ld.so"))
    done = run([*build.python_argv(built.path), "-c", IMPORTS])
    assert done.returncode == 0, done.stderr
