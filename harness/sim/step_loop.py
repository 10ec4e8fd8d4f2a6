"""What an engine needs of the part that composes its steps, and of its KV pool."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from harness.sim.sequence import DecodeGroup, Sequence


class Batch:
    """One step: prefill `chunks` of (sequence, new, computed before), and `decodes` sequences.

    `walked` lists a one-by-one step in order; it is None if the decodes are the whole group.
    """

    __slots__ = (
        "chunks",
        "context",
        "decodes",
        "loads",
        "lost",
        "observed",
        "preempted",
        "stuck",
        "walked",
    )

    def __init__(self) -> None:
        self.chunks: list[tuple[Sequence, int, int]] = []
        self.decodes = 0
        self.context = 0
        self.walked: list[tuple[Sequence, int]] | None = None
        self.preempted: list[Sequence] = []
        self.loads: list[tuple[Sequence, int]] = []
        """Sequences that got blocks and wait for the KV of so many tokens."""
        self.lost: list[tuple[int, int, int, int]] = []
        """Members of the group that are in the step but were aborted since it was composed, as
        (place, id, new, computed)."""
        self.stuck = False
        """An arrival cannot start; only a request that ends can change that."""
        self.observed = False
        """The step after may differ though no request ends or arrives."""


class KvPool(Protocol):
    """Blocks of KV."""

    @property
    def total(self) -> int: ...
    @property
    def free(self) -> int:
        """Blocks that could be allocated; those with content that nobody holds count."""
        ...

    @property
    def cached(self) -> int:
        """Blocks with content that can be hit."""
        ...

    @property
    def evicted(self) -> int:
        """Blocks that lost their content, since start."""
        ...

    def clear(self) -> None:
        """Everything free and without content."""
        ...


class Arrivals(Protocol):
    """Where new sequences are put."""

    def add(self, sequence: Sequence) -> None: ...


class StepLoop(Protocol):
    """Composes steps. The engine calls `schedule`, then `executed`, `due` and what follows."""

    preemptions: int
    queried: int
    hit: int
    in_flight_ps: int
    """End of the step that runs while the next one is composed; -1 if none does."""

    @property
    def group(self) -> DecodeGroup: ...
    @property
    def running(self) -> Mapping[int, Sequence]: ...
    @property
    def waiting(self) -> Arrivals: ...
    @property
    def loading(self) -> Collection[int]:
        """Requests that hold blocks and wait for KV from elsewhere."""
        ...

    @property
    def kept(self) -> Collection[int]:
        """Ended requests whose blocks another replica still copies."""
        ...

    @property
    def queued(self) -> int:
        """Sequences that could be admitted, blocks permitting."""
        ...

    @property
    def busy(self) -> bool:
        """Whether there may be a step to run."""
        ...

    def schedule(self) -> Batch:
        """Compose the next step and allocate its blocks."""
        ...

    def take_next_step(self, steps: int) -> None:
        """Allocate what the group needs in the `steps` steps after its next one."""
        ...

    def executed(self, batch: Batch, steps: int, longest_ps: int, end_ps: int) -> None:
        """The batch ran for `steps` steps (more than one only for the group alone)."""
        ...

    def due(self, batch: Batch) -> list[Sequence]:
        """After a step: sequences that got a token outside the group or ended, in order."""
        ...

    def token(self, sequence: Sequence) -> None:
        """The sequence got a token from a prefill or in a walked step."""
        ...

    def settle(self, sequence: Sequence) -> None:
        """It goes on decoding."""
        ...

    def retire(self, sequence: Sequence) -> None:
        """Its last token is being computed: it keeps its blocks and gets no further step."""
        ...

    def walked_until(self, end_ps: int) -> None:
        """A walked step's tokens are out."""
        ...

    def drop(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is: it is done or aborted."""
        ...

    def loaded(self, request_id: int) -> bool:
        """The KV has come: the sequence can run. False if it is gone."""
        ...

    def release(self, request_id: int) -> bool:
        """Free the blocks that were kept for another replica. False if there are none."""
        ...

    def observe(self, in_step: bool) -> None:
        """Bring the pool's counts up to date."""
        ...

    def clear(self) -> None:
        """Lose everything, as when the replica dies."""
        ...
