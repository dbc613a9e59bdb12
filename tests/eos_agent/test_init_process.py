"""Commands in a session: terminals, pipes, ends of process groups, what is left behind, killing, freezing,
file operations.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from eos_agent.wire.protocol import OperationError
from layerstack.kernel import tempnames
from tests.native import both as both

from .bare_zygote import Box, Ended, in_box

as_root = pytest.mark.needs("root", "overlay")
both_namespaces = pytest.mark.parametrize(
    "namespace",
    [pytest.param("trusted", marks=as_root), pytest.param("user", marks=pytest.mark.needs("userns"))],
)


@both_namespaces
def test_a_terminal_is_the_controlling_one_of_the_command_and_control_c_interrupts_its_foreground(
    namespace: str,
) -> None:
    async def scenario(box: Box) -> tuple[str, int]:
        live = await box.session()
        seen = await live.run(
            "test -t 0 && test -t 1 && test -t 2 && tty && echo to-the-tty > /dev/tty && stty size", tty=True
        )
        running = await live.start("echo up; read line", tty=True)
        await running.saw("up")
        running.write("\x03")
        return seen.out, (await running.ended()).code

    out, code = in_box(scenario, namespace=namespace)
    assert out == "/dev/pts/0\nto-the-tty\n24 80\n"
    assert code == -signal.SIGINT


@both_namespaces
def test_pipes_keep_both_outputs_apart_when_split_and_standard_input_is_closed_unless_asked_for(
    namespace: str,
) -> None:
    async def scenario(box: Box) -> list[Any]:
        live = await box.session()
        split = await live.run("echo out; echo err >&2; cat", split=True)
        merged = await live.run("echo out; echo err >&2")
        fed = await live.start("cat; echo end", stdin=True)
        fed.write("some input\n")
        fed.close("stdin")
        return [(split.out, split.err), (merged.out, merged.err), (await fed.ended()).out]

    assert in_box(scenario, namespace=namespace) == [
        ("out\n", "err\n"),
        ("out\nerr\n", ""),
        "some input\nend\n",
    ]


@as_root
def test_the_exit_status_is_the_one_that_the_kernel_gave() -> None:
    async def scenario(box: Box) -> list[int]:
        live = await box.session()
        return [
            (await live.run(script)).code
            for script in ("exit 0", "exit 7", "exit 255", "kill -KILL $$", "kill -SEGV $$", "nosuch-program")
        ]

    assert in_box(scenario) == [0, 7, 255, -9, -11, 127]


@both_namespaces
def test_a_command_gets_the_environment_that_was_given_three_descriptors_and_default_signals(
    namespace: str,
) -> None:
    async def scenario(box: Box) -> tuple[str, str, str]:
        live = await box.session()
        environment = await live.run(["/usr/bin/env"], env={"PATH": "/bin:/usr/bin", "A": "b c"})
        descriptors = await live.run(["/bin/ls", "/proc/self/fd"])
        signals = await live.run("grep -E '^(SigBlk|SigIgn)' /proc/self/status; umask")
        return environment.out, descriptors.out, signals.out

    environment, descriptors, signals = in_box(scenario, namespace=namespace)
    assert sorted(environment.split("\n")) == ["", "A=b c", "PATH=/bin:/usr/bin"]
    assert descriptors.split() == ["0", "1", "2", "3"]  # 3 is ls's own, on the folder
    blocked, ignored, umask = signals.split()[1::2] + signals.split()[-1:]
    assert int(blocked, 16) == 0 and umask == "0022"
    assert int(ignored, 16) & ~0x180000000 == 0  # 32 and 33 belong to libc, whose posix_spawn ignores them


@both_namespaces
def test_each_of_many_commands_at_once_gets_the_environment_that_was_given_for_it(namespace: str) -> None:
    async def scenario(box: Box) -> list[list[str]]:
        live = await box.session()

        async def some(name: str) -> list[str]:
            environment = {"PATH": "/bin:/usr/bin", "NAME": name}
            started = [await live.start("echo $NAME", env=environment) for _ in range(5)]
            return [(await running.ended()).out.strip() for running in started]

        return await asyncio.gather(*(some(name) for name in "abc"))

    assert in_box(scenario, namespace=namespace) == [[name] * 5 for name in "abc"]


@as_root
def test_a_command_of_another_user_starts_with_no_signal_blocked() -> None:
    async def scenario(box: Box) -> str:
        live = await box.session()
        return (
            await live.run(["/bin/grep", "^SigBlk", "/proc/self/status"], uid=65534)
        ).out  # a shell would unblock them itself

    assert in_box(scenario).split() == ["SigBlk:", "0" * 16]


@as_root
def test_a_background_job_outlives_its_shell_on_a_terminal_and_keeps_writing_to_it() -> None:
    async def scenario(box: Box) -> Ended:
        live = await box.session()
        running = await live.start("(while ! test -e go; do :; done; echo late) & echo early", tty=True)
        await running.waiting.wait()
        await live.run("touch go")
        return await running.ended()

    done = in_box(scenario)
    assert done.out == "early\nlate\n" and [e["event"] for e in done.events] == [
        "leader_exit",
        "waiting_on",
        "group_gone",
    ]


@as_root
def test_a_command_lasts_until_its_process_group_is_gone_and_says_whom_it_waits_for() -> None:
    async def scenario(box: Box) -> list[dict[str, Any]]:
        live = await box.session()
        running = await live.start("read line < gate && echo late & exit 3", env={"PATH": "/usr/bin:/bin"})
        await live.run("test -p gate || mkfifo gate")
        await running.leader_gone.wait()
        await running.waiting.wait()
        assert not running.over.is_set()
        await live.run("echo go > gate")
        return (await running.ended()).events

    events = in_box(scenario, before_fork=lambda top: os.mkfifo(f"{top}/store/base/gate"))
    assert [e["event"] for e in events] == ["leader_exit", "waiting_on", "group_gone"]
    assert os.waitstatus_to_exitcode(events[0]["status"]) == 3
    assert [p["name"] for p in events[1]["processes"]] == ["sh"]
    assert events[2]["left_behind"] == []


DAEMON = (
    "setsid sh -c 'setsid sh -c \"exec sleep 1000 </dev/null >/dev/null 2>&1\" & echo done' "
    "</dev/null; sleep 0.01 & wait"
)
SLEEPERS = "grep -lszx '100[0]' /proc/[0-9]*/cmdline | grep -c ."
"""How many processes have the argument 1000; without `ps`, which a small installation lacks."""


@both_namespaces
def test_processes_that_left_the_group_never_delay_the_end_are_listed_and_die_by_kill_tree(
    namespace: str,
) -> None:
    async def scenario(box: Box) -> tuple[list[str], list[str], str]:
        live = await box.session()
        other = await live.start("exec setsid sleep 1000")  # of another command: neither listed nor killed
        first = await live.start(f"{DAEMON}; until [ $({SLEEPERS}) = 2 ]; do :; done")
        done = await first.ended()
        await live.init.kill_tree(first.key)
        survivors = await live.run(SLEEPERS)
        await live.init.kill_tree(other.key)
        gone = await live.run(SLEEPERS)
        await other.ended()
        return [p["name"] for p in done.left_behind], [survivors.out.strip(), gone.out.strip()], done.out

    left, counts, _ = in_box(scenario, namespace=namespace)
    assert left == ["sleep"] and counts == ["1", "0"]


@as_root
def test_kill_tree_ends_what_ignores_sigterm_and_what_forks_on_and_on() -> None:
    async def scenario(box: Box) -> tuple[int, int, str]:
        live = await box.session()
        stubborn = await live.start("trap '' TERM; echo armed; while :; do sleep 1000; done")
        await stubborn.saw("armed")
        forking = await live.start("trap '' TERM; f() { (sleep 0.02; f) & }; f; f; f; echo armed; sleep 1000")
        await forking.saw("armed")
        await live.init.kill_tree(stubborn.key)
        await live.init.kill_tree(forking.key)
        codes = (await stubborn.ended()).code, (await forking.ended()).code
        return *codes, (await live.run("set -- /proc/[0-9]*; echo $#")).out.strip()

    assert in_box(scenario) == (-9, -9, "2")  # pid 1, sh


@as_root
def test_sigterm_is_tried_first_so_that_a_command_can_clean_up() -> None:
    async def scenario(box: Box) -> tuple[int, str, bool, bool]:
        live = await box.session()
        polite = await live.start(
            "trap 'echo cleaned; exit 5' TERM; echo armed; while :; do sleep 0.01; done"
        )
        await polite.saw("armed")
        await live.init.kill_tree(polite.key)
        done = await polite.ended()
        hup = await live.start("exec sleep 1000")
        sent = await live.init.signal(hup.key, signal.SIGHUP)
        code = (await hup.ended()).code
        assert code == -signal.SIGHUP
        return done.code, done.out, sent, await live.init.signal(hup.key, signal.SIGHUP)

    code, out, sent, sent_again = in_box(scenario)
    assert code == 5 and out.startswith("armed\n") and out.endswith("cleaned\n") and sent and not sent_again


@both_namespaces
def test_the_working_directory_is_the_workspace_or_below_and_a_missing_one_is_named(namespace: str) -> None:
    async def scenario(box: Box) -> tuple[bool, bool, list[tuple[str, dict[str, Any]]]]:
        live = await box.session()
        top = (await live.run("pwd")).out.strip() == box.workspace
        below = (await live.run("pwd", cwd="pkg")).out.strip() == f"{box.workspace}/pkg"
        failures: list[tuple[str, dict[str, Any]]] = []
        for cwd, argv in (
            ("nowhere", ["/bin/true"]),
            ("hello", ["/bin/true"]),
            ("", ["/no/such"]),
            ("", ["no-such"]),
            ("", [box.workspace + "/hello"]),
        ):
            try:
                await live.run(argv, cwd=cwd)
            except OperationError as error:
                failures.append((error.kind, error.details))
        assert (await live.run("echo still here")).code == 0
        return top, below, failures

    top, below, failures = in_box(scenario, namespace=namespace)
    assert top and below
    assert [(d["reason"], d["errno"]) for _, d in failures] == [
        ("cwd_not_found", "ENOENT"),
        ("cwd_not_found", "ENOTDIR"),
        ("exec_failed", "ENOENT"),
        ("exec_failed", "ENOENT"),
        ("exec_failed", "EACCES"),
    ]
    assert failures[0][1]["cwd"] == "nowhere" and {kind for kind, _ in failures} == {"operation_failed"}


@as_root
def test_a_command_runs_as_another_user_on_request() -> None:
    async def scenario(box: Box) -> list[str]:
        live = await box.session()
        plain = await live.run("id -u; id -g; id -G", uid=65534)
        terminal = await live.run("id -u; tty; echo hi > /dev/tty", uid=65534, tty=True)
        try:
            await live.run(["/no/such"], uid=65534)
        except OperationError as error:
            return [plain.out, terminal.out, error.details["reason"]]
        return []

    assert in_box(scenario) == ["65534\n65534\n65534\n", "65534\n/dev/pts/0\nhi\n", "exec_failed"]


@both_namespaces
def test_a_frozen_session_does_nothing_and_goes_on_after_the_thaw(namespace: str) -> None:
    async def scenario(box: Box) -> tuple[int, int, bool, list[str]]:
        live = await box.session("cold")
        running = await live.start("while :; do echo x; done >> out")
        stopped = await live.start("kill -STOP $$; echo continued")
        growing = f"{box.folders('cold')[0]}/out"
        while not os.path.exists(growing) or os.path.getsize(growing) < 1000:
            await live.init.which_shell()
        while (await live.run(f"grep State /proc/{stopped.pid}/status")).out.split()[1] != "T":
            pass
        await live.init.freeze()
        first = os.path.getsize(growing)
        for _ in range(200):
            await live.init.which_shell()
        second = os.path.getsize(growing)
        await live.init.thaw()
        while os.path.getsize(growing) <= second:
            await live.init.which_shell()
        states = [(await live.run(f"grep State /proc/{stopped.pid}/status")).out.split()[1]]
        await live.init.kill_tree(running.key)
        return first, second, running.over.is_set(), states

    first, second, _, states = in_box(scenario, namespace=namespace)
    assert first == second and states == ["T"]  # who was stopped before stays so


def children_of(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


@pytest.mark.needs("userns")
@pytest.mark.parametrize("who", ["its process", "the session"])
def test_a_move_that_is_killed_while_it_copies_leaves_nothing_that_could_be_published(who: str) -> None:
    """The kernel does not rename a directory of a lower layer for an ordinary user. The file in it is sparse:
    reading it takes long.
    """

    def large(top: str) -> None:
        os.makedirs(f"{top}/store/base/d")
        with open(f"{top}/store/base/d/large", "wb") as file:
            file.truncate(4 << 30)

    async def scenario(box: Box) -> tuple[str, list[str], list[tuple[str, int]], bool]:
        live = await box.session("s")
        args = {"from": "d", "to": "new/d", "overwrite": False}
        with pytest.raises(OperationError) as refused:
            await live.init.file_op("move", args)
        assert refused.value.details["reason"] == "copy_needed"
        moving = asyncio.create_task(live.init.file_op("move", {**args, "copy": True}, in_worker=True))
        begun = "until [ -e new/.eos-*/entry/large ]; do :; done"
        if who == "the session":
            await live.run(begun)
            os.kill(live.init.pid, signal.SIGKILL)
        else:
            assert (await live.run(begun)).code == 0
            movers: list[int] = []
            while len(movers) != 1:  # the shell that has ended may not be reaped yet
                movers = [pid for child in children_of(box.zygote.pid) for pid in children_of(child)]
                await asyncio.sleep(0)
            os.kill(movers[0], signal.SIGKILL)
        with pytest.raises(OperationError) as broken:
            await moving
        reason = str(broken.value.details["reason"])
        upper = box.folders("s")[0]
        left = [
            (name, os.stat(f"{upper}/new/{name}").st_mode & 0o7777) for name in os.listdir(f"{upper}/new")
        ]
        return reason, sorted(os.listdir(upper)), left, os.path.exists(f"{upper}/d")

    reason, names, left, touched = in_box(scenario, namespace="user", before_fork=large)
    assert names == ["new"] and not touched
    if who == "the session":
        assert [tempnames.is_place(name, mode) for name, mode in left] == [True]
    else:
        assert (reason, left) == ("operation_killed", [])


@both_namespaces
def test_file_operations_run_inside_the_mount_and_carry_many_megabytes(namespace: str) -> None:
    content = os.urandom(1 << 20) * 12

    async def scenario(box: Box) -> tuple[str, int, str]:
        live = await box.session("files")
        await live.init.file_op("write", {"path": "big.bin", "max_bytes": 1 << 30}, content)
        size = (await live.run("wc -c < big.bin")).out.strip()
        with open(f"{box.folders('files')[0]}/big.bin", "rb") as f:
            same = f.read() == content
        try:
            await live.init.file_op("read", {"path": "absent", "offset": 0, "limit": 10})
        except OperationError as error:
            return size, same, error.kind
        raise AssertionError("read a file that is not there")

    assert in_box(scenario, namespace=namespace) == (str(12 << 20), True, "not_found")


@as_root
def test_500_commands_in_a_row_leave_no_descriptor_and_no_process() -> None:
    async def scenario(box: Box) -> tuple[int, int, int]:
        live = await box.session()
        await live.run("true")
        before = len(os.listdir("/proc/self/fd"))
        runner_before = len(os.listdir(f"/proc/{live.init.pid}/fd"))
        for n in range(500):
            assert (await live.run(["/bin/true"], tty=n % 2 == 0)).code == 0
        after = (
            len(os.listdir("/proc/self/fd")) - before,
            len(os.listdir(f"/proc/{live.init.pid}/fd")) - runner_before,
        )
        return *after, int((await live.run("ls /proc | grep -c '^[0-9]'")).out)

    assert in_box(scenario) == (0, 0, 4)  # pid 1, sh, ls, grep


@as_root
def test_a_shell_is_found_or_said_to_be_missing() -> None:
    async def scenario(box: Box) -> list[str] | None:
        live = await box.session()
        return await live.init.which_shell()

    assert in_box(scenario) in (["/bin/bash", "--noprofile", "--norc", "-c"], ["/bin/sh", "-c"])
