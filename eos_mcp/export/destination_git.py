"""The host's git on a repository of a person: nothing that the repository, the user or the environment
configures is run, and as root git runs as the repository's owner.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import IO, Any

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError

ANSWER_S = 60.0
"""Seconds for a question to git."""
WRITE_S = 3600.0
"""Seconds for git to check and write what it receives."""
SHOWN_BYTES = 2000
NOWHERE = "/nonexistent"

_OFF = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.alternateRefsCommand": "true",
    "core.sshCommand": "false",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "transfer.fsckObjects": "true",
}


def git_failed(message: str, reason: str, **details: Any) -> OperationError:
    return OperationError(OPERATION_FAILED, f"export: {message}", details, reason=reason)


class HostGit:
    """Runs git in one directory.

    Raises, from the constructor and its methods:
        OperationError: reason git_missing, git_failed.
    """

    def __init__(self, directory: str) -> None:
        found = shutil.which("git")
        if found is None:
            raise git_failed(
                "format git needs git on the host, and there is none on PATH",
                "git_missing",
                hint="install git, or export with the format dir, tar or tar-zst",
            )
        self._git, self.directory = found, directory
        self._as: dict[str, Any] = {}
        if os.name == "posix" and os.geteuid() == 0:
            owner = os.stat(directory)
            if owner.st_uid:
                self._as = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        return kept | {
            "LC_ALL": "C",
            "HOME": NOWHERE,
            "XDG_CONFIG_HOME": NOWHERE,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CEILING_DIRECTORIES": os.path.dirname(self.directory),
            "GIT_ALLOW_PROTOCOL": "file",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "true",
            "GIT_EDITOR": "true",
            "GIT_PAGER": "cat",
            "GIT_COMMITTER_NAME": "eos",
            "GIT_COMMITTER_EMAIL": "agent@eos.invalid",
        }

    def call(
        self,
        *words: str,
        data: bytes | IO[bytes] = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float = ANSWER_S,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run git, whatever its exit code is."""
        options = [word for name, value in _OFF.items() for word in ("-c", f"{name}={value}")]
        return self.run(
            [self._git, *options, *words],
            data=data,
            env={**self.environment(), **(env or {})},
            timeout_s=timeout_s,
        )

    def run(
        self,
        argv: list[str],
        *,
        data: bytes | IO[bytes] = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float = ANSWER_S,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a program as the repository's owner."""
        given: dict[str, Any] = {"input": data} if isinstance(data, bytes) else {"stdin": data}
        try:
            return subprocess.run(  # pyright: ignore[reportUnknownVariableType]
                argv,
                cwd=self.directory,
                env=self.environment() if env is None else env,
                capture_output=True,
                timeout=timeout_s,
                check=False,
                **given,
                **self._as,
            )
        except subprocess.TimeoutExpired:
            raise git_failed(
                f"{os.path.basename(argv[0])} {argv[-1]} did not end within {timeout_s:.0f} s",
                "git_failed",
                directory=self.directory,
                retryable=True,
            ) from None
        except (OSError, subprocess.SubprocessError) as error:
            raise git_failed(f"cannot run {argv[0]}: {error}", "git_failed") from error

    def ask(self, *words: str, **more: Any) -> str | None:
        """Run git and give its output without the last newline; None where it fails."""
        done = self.call(*words, **more)
        return os.fsdecode(done.stdout).rstrip("\n") if done.returncode == 0 else None

    def must(self, *words: str, **more: Any) -> str:
        """Run git and give its output without the last newline."""
        done = self.call(*words, **more)
        if done.returncode:
            raise self.failed(done, words)
        return os.fsdecode(done.stdout).rstrip("\n")

    def failed(self, done: subprocess.CompletedProcess[bytes], words: tuple[str, ...]) -> OperationError:
        text = done.stderr.decode("utf-8", "replace").strip()[-SHOWN_BYTES:]
        return git_failed(
            f"git {words[0]} in {self.directory} ended with {done.returncode}: {text}",
            "git_failed",
            directory=self.directory,
            exit_code=done.returncode,
        )
