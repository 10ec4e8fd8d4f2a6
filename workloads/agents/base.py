"""What a driver of real agents offers: tasks, and a client process that runs them one by one.

Agents run in client processes of their own, because their SDKs are slow and may crash. A client
process serves one worker: it says `ready` when it has imported what it needs, reads one JSON object
a line (an `Assignment`) from standard input, runs the agent on it, and writes one JSON object a
line to standard output (`ClientEvent`s, the last of an assignment being `ended`), then waits for
the next, until its input ends. What agents print goes to standard error. A process that dies fails
the session it was running; the next one gets a new process. `workloads.agents.client` is the
process's end of this.

Scratch space of a session is `work` below its folder: removed when the session has ended, however
it ended, and watched so that it cannot fill the disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

EventKind = Literal["ready", "model_started", "model_ended", "tool_started", "tool_ended", "ended"]
EndStatus = Literal["finished", "failed", "deadline"]

SCRATCH = "work"
"""Folder below a session's folder for what need not be kept."""
CONTAINER = "container.id"
"""File in a session's folder with the id of a Docker container that the client started: it is
removed when the client had to be killed."""


@dataclass(frozen=True, slots=True)
class AgentTask:
    """One task; plain JSON data, as it goes to a client process."""

    id: str
    """Unique in the task set; the gateway session is named after it."""
    payload: Mapping[str, Any]
    """What the client process needs beyond the id: an instance, a task folder, ..."""
    timeout_s: float | None = None
    """The task's own deadline for the agent; None: it has none."""
    part: str = ""
    """Workload that it comes from, in a mix of several; a client process serves one part."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One session for a client process."""

    session: str
    """Gateway session; to be sent with every model call, in the header `x-agentsched-session` or
    the agent's own way that the gateway's resolver knows."""
    task: AgentTask
    base_url: str
    """Of the model API, without /v1."""
    admin_url: str | None
    """Of the gateway's admin port, for tool hints; None in front of other routers."""
    model: str
    folder: str
    """Existing, empty: trajectories and logs of this session go below it."""
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """What a client process tells. Times are time.time_ns() of its machine."""

    kind: EventKind
    session: str
    """Empty with `ready`."""
    time_ns: int
    name: str = ""
    """Of the tool."""
    status: EndStatus | None = None
    """With `ended`."""
    error: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """With `ended`: what the agent reports of itself (exit status, calls, tokens, reward)."""


class AgentDriver(Protocol):
    """One kind of real agent on one kind of task set."""

    name: str
    """The workload name, such as `swe-bench-lite`."""
    about: str

    def check(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        """Versions of what it needs.

        Raises:
            UsageError: something is missing or a setting is wrong; the remedy says how to get it.
        """
        ...

    def tasks(
        self, settings: Mapping[str, Any], *, sessions: int | None, seed: int
    ) -> Sequence[AgentTask]:
        """The tasks in the order they are taken up; `sessions` limits or repeats them.

        Raises:
            UsageError: the task set cannot be had, with what can be done about it.
            InputError: a file of tasks is wrong; names file, line and field.
        """
        ...

    def command(self, settings: Mapping[str, Any]) -> Sequence[str]:
        """The client process that runs assignments."""
        ...

    def environment(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        """Environment variables of the client process, over the harness's own."""
        ...

    def script(self, folder: Path, settings: Mapping[str, Any]) -> Path | None:
        """Scripted answers for the emulator (as `agentsched emulate --script` reads them) written
        below `folder`, so that the agents can run without a model; None: it has none."""
        ...
