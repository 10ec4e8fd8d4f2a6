"""What a live cell is put together from: replicas, what stands before them, and who plays.

Fleet   replicas of a run, started before its first cell and stopped after its last
Front   what sessions talk to in one cell: our gateway, or somebody else's router
Player  plays the workload of one cell against a front: replay of a trace, or real agents
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from harness.sim.driver import Recorder
from results.records import Label

Role = Literal["mixed", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """Where a running replica is found. Plain data: it goes to the process of a cell."""

    name: str
    """As the topology names it."""
    url: str
    role: Role = "mixed"
    kv_events: str | None = None
    """ZMQ address that it publishes KV events on."""
    kv_replay: str | None = None
    """ZMQ address that it answers on who missed some of them."""
    bootstrap_port: int | None = None
    """Of an SGLang prefill replica."""
    kv_tokens: int | None = None
    """KV capacity it reported; None: not known."""


class Fleet(Protocol):
    """Running replicas. All calls block; they are made by the process that runs the run."""

    label: Label

    @property
    def model(self) -> str:
        """Name that the replicas serve the model under; known after `start`."""
        ...

    @property
    def gpus(self) -> Sequence[int]:
        """GPUs of this machine that the replicas use, as nvidia-smi numbers them."""
        ...

    def start(self) -> Sequence[ReplicaAddress]:
        """Start all, wait until each has generated a token.

        Raises:
            AgentschedError: one did not come up; shows the end of its log, with a remedy.
        """
        ...

    def reset(self, cell: str) -> Mapping[str, Any]:
        """Make the replicas as new before a cell: caches empty and proved empty, warmed up.

        Returns:
            What was done, for the cell's facts.
        """
        ...

    def facts(self) -> Mapping[str, Any]:
        """Command lines, versions, addresses: for the run's manifest."""
        ...

    def close(self) -> None:
        """Stop every process that `start` started; may be called twice."""
        ...


class Front(Protocol):
    """What the sessions of one cell talk to. Used inside the event loop of the cell's process."""

    label: Label
    url: str
    """Base URL of the model API, without /v1; known after `start`."""
    admin_url: str | None

    async def start(self, replicas: Sequence[ReplicaAddress]) -> None: ...
    async def failed(self) -> Exception:
        """Returns when the front cannot go on, with the reason; else never."""
        ...

    def release(self, session: str) -> None:
        """The session has ended."""
        ...

    def counters(self) -> dict[str, float]: ...
    def facts(self) -> Mapping[str, Any]: ...
    async def close(self) -> None: ...


@dataclass(slots=True)
class Ending:
    """How a player lets its turns end when the cell is told to.

    `drain` is set by players that can: it begins no further turn, and says how many still run.
    """

    drain: Callable[[], int] | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """What a player is given."""

    front: Front
    recorder: Recorder
    clock: Any
    """harness.live.clock.LoopClock: `now` in nanoseconds since the cell began."""
    folder: Path
    """The cell's folder; files of the player's own go below it."""
    model: str
    """Name that the replicas serve the model under."""
    context_limit: int
    progress: Callable[[int, int], None]
    ending: Ending = field(default_factory=Ending)


@dataclass(frozen=True, slots=True)
class Played:
    """How a cell went."""

    makespan_ns: int
    counters: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    timing: Mapping[str, float] = field(default_factory=dict)
    invalid: str | None = None
    """Why the figures must not be used, such as a client that was the bottleneck."""


class Player(Protocol):
    """Plays one cell's workload to its end."""

    async def play(self, stage: Stage) -> Played: ...
