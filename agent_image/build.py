"""Build the bundle: a read-only tree with all that the agent needs, independent of the image of the sandbox.

It is made from this machine's Python: interpreter, dynamic loader, the shared libraries of interpreter and
extension modules, a trimmed standard library, and our packages. It uses no absolute path, so it runs from any
directory:

    ld.so  bin/python3  bin/sandbox-daemon  lib/*.so*  lib/pythonX.Y/
    lib/pythonX.Y has the standard library, lib-dynload, eos_agent, layerstack and h11 (ADR 0066)

The same inputs give the same bytes; the SHA-256 of the tree is its name. On a host that is not Linux, or has
another architecture than the engine, `agent_image/Dockerfile` runs this file inside an image.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from agent_image import native_init
from eos_agent.machine import private_dirs

FORMAT = 1
PRELOAD_OF_GLIBC, PRELOAD_OF_OURS = b"/etc/ld.so.preload\0", b"/eos/ld.so.preload"
PACKAGES = ("eos_agent", "layerstack", "h11")
H11_LICENCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "h11.LICENSE.txt")
"""The notice that each copy of h11 has to carry."""
MOUNTED_AT = "/eos/bundle"
PROGRAMS = ("ld.so", "bin/python3", "bin/sandbox-daemon")
STEADY_TIME = 1_577_836_800
"""mtime of every file (2020-01-01), so that two archives of one tree are equal."""

# A deny-list, not an allow-list: a newer Python may import further modules at start-up.
MODULES_LEFT_OUT = """
test tests idlelib tkinter turtledemo lib2to3 ensurepip __pycache__ site-packages dist-packages distutils pydoc_data venv lib-dynload unittest
xmlrpc wsgiref curses dbm sqlite3 msilib zipapp.py turtle.py antigravity.py this.py doctest.py webbrowser.py pydoc.py imaplib.py nntplib.py
smtpd.py mailbox.py mailcap.py telnetlib.py poplib.py ftplib.py smtplib.py cgi.py cgitb.py aifc.py sunau.py wave.py chunk.py sndhdr.py imghdr.py
pickletools.py __phello__ __phello__.foo.py tabnanny.py pyclbr.py crypt.py
"""  # noqa: E501
EXTENSIONS_LEFT_OUT = """
_tkinter _test _ctypes_test _xx xx _sqlite3 _curses readline _dbm _gdbm audioop ossaudiodev nis _crypt _codecs_ _multibytecodec _decimal _lsprof
spwd _zoneinfo _ssl _uuid _bz2 _lzma _interp
"""  # noqa: E501
DROPPED_MODULES = frozenset(MODULES_LEFT_OUT.split())
DROPPED_EXTENSIONS = tuple(EXTENSIONS_LEFT_OUT.split())
DROPPED_ENCODINGS = re.compile(
    r"(big5|cp(?!437)|euc_|gb|hp_|hz|iso2022|iso8859_|johab|koi8|kz1048|mac_|palmos|ptcp|shift_|tis_|bz2_|rot_|uu_|quopri_|zlib_)"
)

DAEMON_SCRIPT = '''\
"""Start the agent of this bundle. The name of this file is what a process list shows."""

import os
import sys

os.environ.setdefault("OPENSSL_CONF", os.devnull)  # the image's own OpenSSL configuration is not for us
from eos_agent.__main__ import main

sys.exit(main(sys.argv[1:]))
'''

ASK_INTERPRETER = """
import json, os, sys, sysconfig
print(json.dumps({"executable": os.path.realpath(sys.executable), "stdlib": sysconfig.get_path("stdlib"), "version": "%d.%d" % sys.version_info[:2],
 "dynload": [p for p in sys.path if p.endswith("lib-dynload")]}))
"""  # noqa: E501

COMPILE = """
import os, py_compile, sys
root, shown = sys.argv[1:]
for folder, folders, files in os.walk(root):
    folders.sort()
    for name in sorted(files):
        if name.endswith(".py"):
            path = os.path.join(folder, name)
            try:
                py_compile.compile(path, dfile=shown + path[len(root):], doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
            except py_compile.PyCompileError as error:
                if "/bad" not in path: raise SystemExit(str(error))
"""  # noqa: E501


class Bundle(NamedTuple):
    """A tree on this machine's disk and the hash that names it, 64 hex digits."""

    path: str
    sha: str

    def argv(self, at: str | None = None) -> list[str]:
        """The command line that starts the agent; `at` is the path of the bundle where it runs."""
        return daemon_argv(at or self.path)


class BuildError(Exception):
    """This machine's Python cannot be bundled; the message says what was checked and what to do."""


def python_argv(root: str) -> list[str]:
    """The command line of the bundle's interpreter below `root`, isolated from the image's Python."""
    interpreter = f"{root}/bin/python3"
    loader = [
        f"{root}/ld.so",
        "--inhibit-cache",
        "--library-path",
        f"{root}/lib",
        "--argv0",
        interpreter,
        interpreter,
    ]
    return [*loader, "-I", "-S", "-X", "utf8"]


def daemon_argv(root: str) -> list[str]:
    return [*python_argv(root), f"{root}/bin/sandbox-daemon"]


def build(dest_cache_dir: str) -> Bundle:
    """Build the bundle of this machine's Python and our packages below `dest_cache_dir`, unless it exists.

    Returns:
        A complete tree at `<dest_cache_dir>/<sha>`, never changed again. Concurrent callers get the same one.
    Raises:
        BuildError: not Linux, no dynamic loader, a library of the interpreter was not found, or another user
            could replace the bundle.
    Cost: about a second the first time; later some milliseconds, to read our packages and stat each library.
    """
    make_cache(dest_cache_dir)
    key = _input_key()
    record_path = os.path.join(dest_cache_dir, f"key-{key}.json")
    known = _recorded(record_path, dest_cache_dir)
    if known is not None:
        return known
    staging = os.path.join(dest_cache_dir, f".building-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        inputs = make(staging)
        sha = tree_hash(staging)
        path = os.path.join(dest_cache_dir, sha)
        put(staging, path, sha)
        record = json.dumps({"format": FORMAT, "sha": sha, "inputs": inputs})
        temporary = f"{record_path}.{os.getpid()}.{os.urandom(4).hex()}"
        with open(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600),
            "w",
            encoding="utf-8",
        ) as file:
            file.write(record)
        os.rename(temporary, record_path)
        return Bundle(path, sha)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def make_cache(folder: str) -> None:
    """Make the directory of the bundles, 0700. If others could write to it, its records are removed: they
    name programs.

    Raises:
        BuildError: another user owns it, or could replace it.
    """
    try:
        could_write = private_dirs.make(folder) & private_dirs.MAY_WRITE
        problem = private_dirs.untrusted(folder)
    except private_dirs.NotPrivate as error:
        problem, could_write = error, 0
    if problem is not None:
        raise BuildError(f"{problem.filename} {problem.strerror}")
    if could_write:
        for name in os.listdir(folder):
            if name.startswith("key-"):
                os.unlink(os.path.join(folder, name))


def put(staging: str, path: str, sha: str) -> None:
    """Rename the finished tree to its hash; an existing tree stays if its hash is right, else it is moved
    away."""
    for _ in range(8):
        try:
            os.rename(staging, path)
            return
        except OSError:
            if not os.path.isdir(path):
                raise
        if not _is_foreign(path) and tree_hash(path) == sha:
            return
        os.rename(path, os.path.join(os.path.dirname(path), f".torn-{sha[:16]}-{os.urandom(4).hex()}"))
    raise BuildError(f"{path} was replaced repeatedly by a tree whose hash is not its name")


def _is_foreign(path: str) -> bool:
    found = os.lstat(path)
    return (
        found.st_uid != os.geteuid()
        or not stat.S_ISDIR(found.st_mode)
        or bool(found.st_mode & private_dirs.MAY_WRITE)
    )


def known(dest_cache_dir: str) -> Bundle | None:
    """The bundle that `build` would return without building, or None."""
    if private_dirs.untrusted(dest_cache_dir) is not None:
        return None
    return _recorded(os.path.join(dest_cache_dir, f"key-{_input_key()}.json"), dest_cache_dir)


def make(out: str) -> list[list[Any]]:
    """Write the tree to `out`, which must not exist or be empty; on failure `out` is incomplete.

    Returns:
        The files of the machine that it was made from, to detect upgrades: [path, size, mtime_ns] each.
    """
    if sys.platform != "linux":
        raise BuildError(
            "the bundle is made on Linux; elsewhere agent_image/Dockerfile makes it in an image that "
            "has python3"
        )
    python = _interpreter()
    asked: dict[str, Any] = json.loads(
        subprocess.run(
            [python, "-I", "-c", ASK_INTERPRETER], capture_output=True, text=True, check=True
        ).stdout
    )
    executable, stdlib, version = str(asked["executable"]), str(asked["stdlib"]), str(asked["version"])
    extensions: list[str] = asked["dynload"]
    loader = _elf_interpreter(executable)
    if loader is None:
        raise BuildError(
            f"{executable} has no dynamic loader: a fully static Python cannot reach libc; use a "
            f"distribution's python3"
        )
    lib = os.path.join(out, "lib")
    target = os.path.join(lib, f"python{version}")
    os.makedirs(os.path.join(target, "lib-dynload"))
    os.makedirs(os.path.join(out, "bin"))
    _copy_loader(os.path.realpath(loader), os.path.join(out, "ld.so"))
    shutil.copyfile(executable, os.path.join(out, "bin", "python3"))
    _copy_stdlib(stdlib, target)
    libraries = dict(_needed(loader, executable))
    for source in extensions:
        for name in sorted(os.listdir(source)):
            if ".so" in name and not name.startswith(DROPPED_EXTENSIONS):
                shutil.copyfile(os.path.join(source, name), os.path.join(target, "lib-dynload", name))
                libraries.update(_needed(loader, os.path.join(source, name)))
    for name, path in sorted(libraries.items()):
        if not name.startswith(("ld-linux", "ld-musl", "ld64")):
            shutil.copyfile(os.path.realpath(path), os.path.join(lib, name))
    _strip(out)
    for package in PACKAGES:
        _copy_package(package, target)
    shutil.copyfile(H11_LICENCE, os.path.join(target, "h11", "LICENSE.txt"))
    _make_init(os.path.join(target, "eos_agent", "init"))
    with open(os.path.join(out, "bin", "sandbox-daemon"), "w", encoding="utf-8") as script:
        script.write(DAEMON_SCRIPT)
    steady = {"PYTHONHASHSEED": "0", "PATH": os.environ.get("PATH", os.defpath)}
    compiled = subprocess.run(
        [python, "-S", "-s", "-P", "-c", COMPILE, out, MOUNTED_AT],
        env=steady,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if compiled.returncode != 0:
        raise BuildError(
            f"compiling the standard library with {python} failed: "
            f"{(compiled.stderr or compiled.stdout).strip()[-500:]}"
        )
    _set_modes_and_times(out)
    used = [executable, loader, os.path.join(stdlib, "os.py"), *libraries.values()]
    return [_stat_of(path) for path in sorted(set(used))]


def tree_hash(root: str) -> str:
    """SHA-256 of path, mode and content of every entry, in byte order of paths."""
    digest = hashlib.sha256(f"bundle {FORMAT}\n".encode())
    for relative, path, status in _walk(root):
        digest.update(f"{relative}\0{stat.S_IMODE(status.st_mode):o}\0".encode())
        if stat.S_ISREG(status.st_mode):
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def archive(root: str) -> Iterator[bytes]:
    """The tree as an uncompressed tar, in pieces of about 1 MiB; relative names, owner root; equal trees give
    equal bytes."""

    def add(tar: tarfile.TarFile) -> Generator[None]:
        for relative, path, status in _walk(root):
            info = tarfile.TarInfo(relative)
            info.mode, info.mtime = stat.S_IMODE(status.st_mode), STEADY_TIME
            if stat.S_ISDIR(status.st_mode):
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            else:
                info.size = status.st_size
                with open(path, "rb") as file:
                    tar.addfile(info, file)
            yield

    return streamed_tar(add)


def streamed_tar(add: Callable[[tarfile.TarFile], Generator[None]], piece: int = 1 << 20) -> Iterator[bytes]:
    """The bytes of the archive that `add` fills; `add` yields after each member, so memory has one member and
    one piece."""
    buffer = _Buffer()
    with tarfile.open(fileobj=buffer, mode="w|", format=tarfile.PAX_FORMAT, bufsize=64 * 1024) as tar:
        for _ in add(tar):
            if buffer.held >= piece:
                yield buffer.drain()
    yield buffer.drain()


class _Buffer(io.RawIOBase):
    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.held = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self.pieces.append(bytes(data))
        self.held += len(data)
        return len(data)

    def drain(self) -> bytes:
        out = b"".join(self.pieces)
        self.pieces, self.held = [], 0
        return out


def build_context() -> Iterator[bytes]:
    """The build context of `agent_image/Dockerfile`: the Dockerfile and our packages. The build needs no
    network."""
    here = os.path.dirname(os.path.abspath(__file__))

    def add(tar: tarfile.TarFile) -> Generator[None]:
        tar.add(os.path.join(here, "Dockerfile"), "Dockerfile", filter=_anonymous)
        for name in ("__init__.py", "build.py", "native_init.py", os.path.basename(H11_LICENCE)):
            tar.add(os.path.join(here, name), f"context/agent_image/{name}", filter=_anonymous)
        for package in PACKAGES:
            root = _package_root(package)
            for relative, path, status in _walk(root):
                if stat.S_ISREG(status.st_mode) and (
                    relative.endswith(".py") or relative == native_init.SOURCE
                ):
                    tar.add(path, f"context/{package}/{relative}", filter=_anonymous)
                    yield
        yield

    return streamed_tar(add)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = STEADY_TIME
    return info


def _interpreter() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _input_key() -> str:
    """A key of the inputs of a bundle: interpreter, packages, this file. Libraries are in the record
    instead."""
    digest = hashlib.sha256(
        f"{FORMAT} {sys.version} {shutil.which('strip') is not None} {_stat_of(_interpreter())}\n".encode()
    )
    for source in (__file__, native_init.__file__, H11_LICENCE):
        with open(os.path.abspath(source), "rb") as file:
            digest.update(file.read())
    digest.update(f"{native_init.key(_init_source())} {_init_made()}\n".encode())
    for package in PACKAGES:
        root = _package_root(package)
        for relative, path, status in _walk(root):
            if relative.endswith(".py") and stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    content = file.read()
                digest.update(f"{package}/{relative}\0{len(content)}\0".encode())
                digest.update(content)
    return digest.hexdigest()[:32]


def _recorded(record_path: str, cache_dir: str) -> Bundle | None:
    try:
        if private_dirs.untrusted_file(record_path):
            return None
        with open(record_path, encoding="utf-8") as file:
            record = json.load(file)
        path = os.path.join(cache_dir, str(record["sha"]))
        if (
            record["format"] == FORMAT
            and not _is_foreign(path)
            and all(_stat_of(entry[0]) == entry for entry in record["inputs"])
        ):
            return Bundle(path, str(record["sha"]))
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        pass
    return None


def _stat_of(path: str) -> list[Any]:
    status = os.stat(path)
    return [path, status.st_size, status.st_mtime_ns]


def _package_root(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise BuildError(f"the package {package} is not installed in this Python, {sys.executable}")
    return os.path.dirname(os.path.abspath(spec.origin))


def _elf_interpreter(path: str) -> str | None:
    """PT_INTERP of a 64-bit little-endian ELF file."""
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\x02\x01":
            raise BuildError(f"{path} is not a 64-bit little-endian ELF file")
        (offset,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        file.seek(offset)
        table = file.read(size * count)
        for index in range(count):
            if struct.unpack_from("<I", table, index * size)[0] == 3:
                at, _, _, length = struct.unpack_from("<QQQQ", table, index * size + 8)
                file.seek(at)
                return file.read(length).rstrip(b"\0").decode()
    return None


def _needed(loader: str, path: str) -> list[tuple[str, str]]:
    """List every shared library that the loader maps for `path`: (name, absolute path)."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("LD_")}
    done = subprocess.run([loader, "--list", path], capture_output=True, text=True, env=env, check=False)
    found: list[tuple[str, str]] = []
    for line in done.stdout.splitlines():
        if m := re.match(r"\s*(\S+) => (/\S+)", line):
            found.append((m[1], m[2]))
        elif "not found" in line:
            raise BuildError(f"{path} needs {line.strip()}")
    return found


def _copy_loader(source: str, target: str) -> None:
    """Copy the loader with its path of ld.so.preload changed to one below /eos: any command may write to the
    image's /etc.

    glibc has the path compiled in, without an option to disable it (elf/rtld.c); musl does not have such a
    file.
    """
    with open(source, "rb") as file:
        content = file.read()
    ours = PRELOAD_OF_OURS + b"\0"
    assert len(ours) == len(PRELOAD_OF_GLIBC)
    with open(target, "wb") as file:
        file.write(content.replace(PRELOAD_OF_GLIBC, ours))


def _copy_stdlib(source: str, target: str) -> None:
    for name in sorted(os.listdir(source)):
        path = os.path.join(source, name)
        if name in DROPPED_MODULES or name.startswith("config-"):
            continue
        if os.path.isdir(path):
            ignored = shutil.ignore_patterns("__pycache__", "test", "tests", "*.pyc", "*.exe", "*.a", "*.o")
            shutil.copytree(path, os.path.join(target, name), ignore=ignored, copy_function=shutil.copyfile)
        elif name.endswith(".py") or name == "LICENSE.txt":
            shutil.copyfile(path, os.path.join(target, name))
    encodings = os.path.join(target, "encodings")
    for name in os.listdir(encodings):
        if DROPPED_ENCODINGS.match(name):
            os.unlink(os.path.join(encodings, name))


def _copy_package(package: str, target: str) -> None:
    root = _package_root(package)
    for relative, path, status in _walk(root):
        if stat.S_ISREG(status.st_mode) and relative.endswith(".py"):
            to = os.path.join(target, package, relative)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copyfile(path, to)


def _init_source() -> str:
    return os.path.join(_package_root("eos_agent"), "init", native_init.SOURCE)


def _init_made() -> list[Any] | None:
    """The native init that a wheel brought along."""
    path = os.path.join(_package_root("eos_agent"), "init", native_init.NAME)
    return _stat_of(path) if os.path.exists(path) else None


def _make_init(folder: str) -> None:
    """Add the native init to our modules: the wheel's, else one compiled here, else none (the agent has one
    in Python)."""
    target = os.path.join(folder, native_init.NAME)
    made = _init_made()
    if made is not None:
        shutil.copyfile(made[0], target)
    else:
        native_init.make(_init_source(), target)


def _strip(out: str) -> None:
    """Strip debug data, if the tool exists; the loader is not changed."""
    tool = shutil.which("strip")
    if tool is None:
        return
    paths: list[str] = []
    for relative, path, status in _walk(out):
        if stat.S_ISREG(status.st_mode) and relative != "ld.so":
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    paths.append(path)
    subprocess.run(
        [tool, "--strip-unneeded", "--", *paths],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def _set_modes_and_times(out: str) -> None:
    """Set modes and times, independent of the machine's umask and clock."""
    for relative, path, status in _walk(out):
        if stat.S_ISDIR(status.st_mode):
            os.chmod(path, 0o755)
        else:
            os.chmod(
                path,
                0o755 if relative in PROGRAMS or os.path.basename(relative) == native_init.NAME else 0o644,
            )
            os.utime(path, (STEADY_TIME, STEADY_TIME))
    os.chmod(out, 0o755)


def _walk(root: str) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield (relative path, path, lstat) of all below `root` but __pycache__, parents first, in byte
    order."""
    pending = [""]
    while pending:
        folder = pending.pop()
        below: list[str] = []
        for name in sorted(os.listdir(os.path.join(root, folder)), key=os.fsencode):
            relative = os.path.join(folder, name)
            path = os.path.join(root, relative)
            status = os.lstat(path)
            yield relative, path, status
            if stat.S_ISDIR(status.st_mode):
                below.append(relative)
        pending.extend(reversed(below))


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write(
            "usage: python -m agent_image.build OUT\nWrites the bundle to OUT, which must not exist, and "
            "prints its hash.\n"
        )
        return 2
    try:
        make(arguments[0])
    except (BuildError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(tree_hash(arguments[0]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
