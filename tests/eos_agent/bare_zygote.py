"""A zygote and sessions without an agent: helper of test_zygote, test_init_process and test_confinement."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from eos_agent.handles.init_handle import InitHandle
from eos_agent.handles.zygote_handle import ZygoteHandle, fork_zygote
from eos_agent.machine.neighbours import News
from eos_agent.zygote.specs import HostSpec, SessionSpec
from layerstack.kernel import overlay, xattrs
from tests import in_namespace, leaks, native, probes

for _module in (
    "eos_agent.zygote.main",
    "eos_agent.files.mounted",
    "concurrent.futures.thread",
    "asyncio.unix_events",
):
    importlib.import_module(_module)  # an ordinary user may not be able to read the checkout

T = TypeVar("T")
WAIT_S = 30.0
PATH = "/usr/local/bin:/usr/bin:/bin"


class Ended(NamedTuple):
    """An ended command: its wait status as an exit code, its outputs, and its events in order."""

    code: int
    out: str
    err: str
    events: list[dict[str, Any]]

    @property
    def left_behind(self) -> list[dict[str, Any]]:
        return list(self.events[-1]["left_behind"])


class Box:
    """Store, workspace and zygote in one temporary folder."""

    def __init__(self, top: str, workspace: str, zygote: ZygoteHandle, rootless: bool) -> None:
        self.top, self.workspace, self.zygote, self.rootless = top, workspace, zygote, rootless
        self._count = 0

    def folders(self, name: str) -> tuple[str, str]:
        """Return an upperdir and a workdir, made when missing."""
        upper, work = f"{self.top}/store/{name}/upper", f"{self.top}/store/{name}/work"
        os.makedirs(upper, exist_ok=True)
        os.makedirs(work, exist_ok=True)
        return upper, work

    def mount(self, name: str) -> int:
        upper, work = self.folders(name)
        return overlay.create(
            [f"{self.top}/store/base"],
            upper,
            work,
            xattr_namespace=xattrs.USER if self.rootless else xattrs.TRUSTED,
        )

    async def session(self, name: str = "", *, network: str = "shared", rootfs_mode: str = "shared") -> Live:
        self._count += 1
        name = name or f"s{self._count}"
        fd = self.mount(name)
        try:
            init = await self.zygote.create(SessionSpec(name, network, rootfs_mode), fd, timeout_s=WAIT_S)
        finally:
            os.close(fd)
        return Live(self, name, init)

    def in_use(self, name: str) -> bool:
        return overlay.in_use(self.folders(name)[0], "/proc")


class Running:
    """A command that was started; collects what it writes until every writer is gone."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.events: list[dict[str, Any]] = []
        self.fds: dict[str, int] = {}
        self.pid = 0
        self.over = asyncio.Event()
        self.waiting = asyncio.Event()
        self.leader_gone = asyncio.Event()
        self._parts: dict[str, bytearray] = {}
        self._seen = asyncio.Event()

    def note(self, event: dict[str, Any]) -> None:
        if event["event"] == "ended":  # both at once
            self.note({"event": "leader_exit", "key": self.key, "status": event["status"]})
            event = {"event": "group_gone", "key": self.key, "left_behind": []}
        self.events.append(event)
        {"group_gone": self.over, "waiting_on": self.waiting, "leader_exit": self.leader_gone}[
            event["event"]
        ].set()

    def collect(self) -> None:
        loop = asyncio.get_running_loop()
        for name, fd in self.fds.items():
            if name != "stdin":
                self._parts[name] = bytearray()
                loop.add_reader(fd, self._read, name, fd)

    def _read(self, name: str, fd: int) -> None:
        try:
            part = os.read(fd, 65536)
        except BlockingIOError:
            return
        except OSError:  # EIO: the last slave of a terminal was closed
            part = b""
        self._parts[name] += part
        self._seen.set()
        if not part:
            asyncio.get_running_loop().remove_reader(fd)

    def text(self, name: str = "") -> str:
        name = name or ("tty" if "tty" in self._parts else "stdout")
        return self._parts.get(name, bytearray()).decode(errors="replace").replace("\r\n", "\n")

    async def saw(self, text: str) -> None:
        """Wait until it has written `text`."""
        async with asyncio.timeout(WAIT_S):
            while text not in self.text():
                self._seen.clear()
                await self._seen.wait()

    def write(self, text: str) -> None:
        os.write(self.fds["tty" if "tty" in self.fds else "stdin"], text.encode())

    async def ended(self) -> Ended:
        async with asyncio.timeout(WAIT_S):
            await self.over.wait()
        loop = asyncio.get_running_loop()
        for name, fd in self.fds.items():
            if name != "stdin":
                loop.remove_reader(fd)
                self._read_rest(name, fd)
        self.close()
        status = next(e["status"] for e in self.events if e["event"] == "leader_exit")
        return Ended(os.waitstatus_to_exitcode(status), self.text(), self.text("stderr"), self.events)

    def _read_rest(self, name: str, fd: int) -> None:
        try:
            while part := os.read(fd, 65536):
                self._parts[name] += part
        except OSError:
            pass

    def close(self, *names: str) -> None:
        for name in names or tuple(self.fds):
            os.close(self.fds.pop(name))


class Live:
    """A running session."""

    def __init__(self, box: Box, name: str, init: InitHandle) -> None:
        self.box, self.name, self.init = box, name, init
        self._running: dict[str, Running] = {}
        self._count = 0

    async def start(
        self,
        script: str | list[str],
        *,
        tty: bool = False,
        split: bool = False,
        stdin: bool = False,
        cwd: str = "",
        env: dict[str, str] | None = None,
        uid: int | None = None,
    ) -> Running:
        self._count += 1
        running = self._running[f"c{self._count}"] = Running(f"c{self._count}")
        argv = ["/bin/sh", "-c", script] if isinstance(script, str) else script
        spawned = await self.init.spawn(
            running.key,
            argv=argv,
            env={"PATH": PATH} if env is None else env,
            cwd=cwd,
            tty=tty,
            split=split,
            stdin=stdin,
            on_event=running.note,
            uid=uid,
        )
        running.pid, running.fds = spawned.pid, dict(spawned.fds)
        running.collect()
        return running

    async def run(self, script: str | list[str], **options: Any) -> Ended:
        return await (await self.start(script, **options)).ended()


def in_box(
    scenario: Callable[[Box], Awaitable[T]],
    *,
    namespace: str = "trusted",
    provider: str = "local",
    workspace: str | None = None,
    files: dict[str, str] | None = None,
    hidden: Iterable[str] = (),
    rootfs: Callable[[str], str] | None = None,
    before_fork: Callable[[str], None] | None = None,
    parent: str | None = None,
) -> T:
    """Await scenario(box) in a child process, which enters a mount namespace ("trusted") or becomes an
    ordinary user ("user").
    """

    def run() -> T:
        top = tempfile.mkdtemp(prefix="eos-b-", dir=parent or probes.scratch_root())
        leaks.note("directory", top)
        os.environ["HOME"] = os.path.join(top, "home")
        place = workspace.replace("TOP", top) if workspace else f"{top}/ws"
        try:
            for folder in ("store/base", "home", "private"):
                os.makedirs(os.path.join(top, folder))
            os.makedirs(place, exist_ok=True)
            for name, text in (files or {"hello": "hello\n", "pkg/m.py": "pass\n"}).items():
                path = os.path.join(top, "store/base", name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w") as f:
                    f.write(text)
            if before_fork is not None:
                before_fork(top)
            store = f"{top}/store"
            shown = rootfs(top) if rootfs is not None else None
            program = native.program()
            private = [store, f"{top}/private"] if provider == "local" else []
            host = HostSpec(
                provider,
                place,
                [h.replace("TOP", top) for h in hidden] or [store],
                private,
                shown,
                "",
                init=program,
            )
            news = News() if provider == "local" else None
            pid, sock = fork_zygote(host)

            async def main() -> T:
                zygote = ZygoteHandle(pid, sock, news=news)
                await zygote.start()
                try:
                    return await scenario(Box(top, place, zygote, namespace == "user"))
                finally:
                    await zygote.close()

            return asyncio.run(main())
        finally:
            shutil.rmtree(top)

    return in_namespace.call(namespace, run)
