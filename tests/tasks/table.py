"""The tasks, each beside what it cost when the server's texts were first measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.tasks import commands, conflicts, whole_job
from tests.tasks.project import Desk


class Task(NamedTuple):
    """A task; `calls` and `tokens`: its cost at the first measurement, of results' texts alone."""

    name: str
    calls: int
    tokens: int
    do: Callable[[Desk], object]


TASKS = (
    Task("create sandbox", 4, 179, whole_job.create_sandbox),
    Task("run tests", 2, 153, whole_job.run_tests),
    Task("fix", 4, 133, whole_job.fix),
    Task("publish", 2, 55, whole_job.publish),
    Task("conflict", 3, 229, conflicts.conflict_alone),
    Task("resolve (session)", 8, 374, conflicts.resolve_session),
    Task("resolve from draft", 9, 898, conflicts.resolve_draft),
    Task("50,000-line log", 5, 5985, commands.long_log),
    Task("hung command", 11, 500, commands.hung_command),
    Task("interpreter", 6, 370, commands.interpreter),
    Task("git rebase -i", 6, 1740, commands.rebase_interactively),
    Task("password and yes-no prompts", 5, 228, commands.prompts),
    Task("end of input of a filter", 3, 132, commands.end_of_input),
    Task("background server", 10, 595, commands.server),
    Task("export", 6, 666, whole_job.export),
    Task("clean up", 4, 95, whole_job.clean_up),
)
GIT = Task("git commit in two sessions", 6, 519, conflicts.git_commits)
"""Measured, not held: sessions that commit to one repository have a conflict in its files."""


class Cost(NamedTuple):
    """Cost of a task: calls, and tokens of the texts of their results."""

    calls: int
    tokens: int


def cost(task: Task, desk: Desk) -> Cost:
    """Do one task and count."""
    desk.reader.begin()
    task.do(desk)
    return Cost(desk.reader.calls, desk.reader.tokens)
