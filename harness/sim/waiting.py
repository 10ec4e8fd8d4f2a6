"""Queues of sequences that wait for a place in the batch."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Protocol

from harness.sim.engine_types import Policy
from harness.sim.sequence import Sequence


class Waiting(Protocol):
    """What the batcher needs of a queue."""

    def __len__(self) -> int: ...
    def first(self) -> Sequence: ...
    def pop_first(self) -> Sequence: ...
    def add(self, sequence: Sequence) -> None:
        """A new arrival."""
        ...

    def put_back(self, sequence: Sequence) -> None:
        """A preempted sequence."""
        ...

    def remove(self, sequence: Sequence) -> None: ...
    def clear(self) -> None: ...


def waiting_queue(policy: Policy) -> Waiting:
    """The queue of a policy."""
    return FirstComeQueue() if policy == "fcfs" else PriorityQueue()


class FirstComeQueue:
    """In order of arrival; a preempted sequence goes to the front."""

    def __init__(self) -> None:
        self._items: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def first(self) -> Sequence:
        return self._items[0]

    def pop_first(self) -> Sequence:
        return self._items.popleft()

    def add(self, sequence: Sequence) -> None:
        self._items.append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        self._items.appendleft(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._items.remove(sequence)

    def clear(self) -> None:
        self._items.clear()


class PriorityQueue:
    """By priority, then arrival, then id, also after a preemption."""

    def __init__(self) -> None:
        self._heap: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._heap)

    def first(self) -> Sequence:
        return self._heap[0]

    def pop_first(self) -> Sequence:
        return heappop(self._heap)

    def add(self, sequence: Sequence) -> None:
        heappush(self._heap, sequence)

    def put_back(self, sequence: Sequence) -> None:
        heappush(self._heap, sequence)

    def remove(self, sequence: Sequence) -> None:
        self._heap.remove(sequence)
        heapify(self._heap)

    def clear(self) -> None:
        self._heap.clear()
