"""The notes of a real engine (`inside_engine/agentsched_recorder.py`), read and cut at its resets.

A note is kept with a test as a small file: texts as the stretches that they share instead of
tokens, times as differences.
"""

from __future__ import annotations

import gzip
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentsched import InputError

Batch = tuple[tuple[int, int, int], ...]
"""(request, new tokens, tokens computed before), in the order scheduled."""
Text = tuple[tuple[str, int], ...]
"""(stretch, tokens): equal stretches after equal text are equal text."""


@dataclass(frozen=True, slots=True)
class NotedRequest:
    """A request as the engine's scheduler got it; nanoseconds of the engine's clock."""

    id: int
    at: int
    """When it was handed to the scheduler."""
    seen: int
    """When the next step was composed: the first that could hold it."""
    prompt: int
    output: int
    """Tokens that it really got."""
    priority: int
    text: Text
    """Of prompt and output."""
    dropped: int | None = None
    """When it was aborted."""


@dataclass(frozen=True, slots=True)
class NotedStep:
    """One step that ran. `free` blocks after it was composed, `evicted` ones since the reset."""

    start: int
    end: int
    """When the next step was composed, or found empty."""
    batch: Batch
    preempted: tuple[int, ...]
    free: int
    evicted: int
    done: int
    """When its tokens were there."""


@dataclass(frozen=True, slots=True)
class EngineNotes:
    """What one engine did from one reset of its cache to the next."""

    settings: Mapping[str, Any]
    requests: tuple[NotedRequest, ...]
    steps: tuple[NotedStep, ...]

    @property
    def replica(self) -> str:
        return str(self.settings["replica"])


def read_notes(path: Path) -> list[EngineNotes]:
    """The notes of one process, one for each stretch between resets; the first is before any.

    Raises:
        InputError: not such a file.
    """
    lines = [json.loads(line) for line in path.read_text("ascii").splitlines()]
    if not lines or lines[0][0] != "begin":
        raise InputError("holds no notes of an engine", "record it again", file=path)
    settings = lines[0][2]
    parts: list[list[list[Any]]] = [[]]
    for line in lines[1:]:
        if line[0] == "reset" and line[2]:
            parts.append([])
        else:
            parts[-1].append(line)
    return [_Reader(settings).read(part) for part in parts]


class _Reader:
    """Reads one stretch."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._numbers: dict[str, int] = {}
        self._tokens: list[list[int]] = []
        self._dropped: dict[int, int] = {}

    def read(self, lines: Sequence[list[Any]]) -> EngineNotes:
        composed = [line[1] for line in lines if line[0] == "step"]
        adds: list[tuple[int, int, int, int, int]] = []
        pending: deque[list[Any]] = deque()
        steps: list[NotedStep] = []
        position = evicted = 0
        for line in lines:
            kind, at = line[0], line[1]
            if kind == "add":
                number = self._numbers[line[2]] = len(adds)
                self._tokens.append(list(line[3]))
                seen = composed[position] if position < len(composed) else at
                adds.append((number, at, seen, len(line[3]), line[5]))
            elif kind == "drop":
                self._dropped |= {self._numbers[name]: at for name in line[2]}
            elif kind == "step":
                position += 1
                if position == 1:
                    evicted = line[5]  # all blocks are blank: this step evicts none
                pending.append(line)
            elif kind == "out":
                ran = pending.popleft()
                if ran[2]:
                    self._take(line[2])
                    end = composed[position] if position < len(composed) else at
                    steps.append(self._step(ran, end, at, evicted))
        return EngineNotes(self._settings, tuple(self._requests(adds)), tuple(steps))

    def _step(self, line: list[Any], end: int, done: int, evicted: int) -> NotedStep:
        batch = tuple((self._numbers[name], new, before) for name, new, before in line[2])
        preempted = tuple(sorted(self._numbers[name] for name in line[3]))
        return NotedStep(line[1], end, batch, preempted, line[4], line[5] - evicted, done)

    def _take(self, sampled: Mapping[str, list[int]]) -> None:
        for name, tokens in sampled.items():
            number = self._numbers[name]
            if number not in self._dropped:
                self._tokens[number] += tokens

    def _requests(self, adds: Sequence[tuple[int, int, int, int, int]]) -> Iterator[NotedRequest]:
        texts = _texts(self._tokens)
        for number, at, seen, prompt, priority in adds:
            yield NotedRequest(
                number,
                at,
                seen,
                prompt,
                len(self._tokens[number]) - prompt,
                priority,
                texts[number],
                self._dropped.get(number),
            )


def _texts(tokens: Sequence[Sequence[int]]) -> list[Text]:
    """Each token belongs to the first request that had it after the same text."""
    nodes: dict[tuple[int, int], tuple[int, int]] = {}
    texts = []
    for number, line in enumerate(tokens):
        stretches: list[list[int]] = []
        node = 0
        for token in line:
            node, owner = nodes.setdefault((node, token), (len(nodes) + 1, number))
            if stretches and stretches[-1][0] == owner:
                stretches[-1][1] += 1
            else:
                stretches.append([owner, 1])
        texts.append(tuple((str(owner), count) for owner, count in stretches))
    return texts


def write_small(path: Path, notes: Sequence[EngineNotes]) -> None:
    """Write notes as a small file: gzip'd JSON lines, times as differences."""
    with gzip.GzipFile(path, "wb", compresslevel=9, mtime=0) as file:
        for note in notes:
            start = note.steps[0].start
            rows: list[Any] = [dict(note.settings)]
            rows.append(
                [
                    [
                        *(r.at - start, r.seen - r.at, r.prompt, r.output, r.priority),
                        [[int(name), count] for name, count in r.text],
                        None if r.dropped is None else r.dropped - start,
                    ]
                    for r in note.requests
                ]
            )
            clock, evicted, steps = start, 0, []
            for s in note.steps:
                batch = [number for row in s.batch for number in row]
                gained = s.evicted - evicted
                steps.append(
                    [
                        *(s.start - clock, s.end - s.start, s.done - s.start, s.free, gained),
                        batch,
                        list(s.preempted),
                    ]
                )
                clock, evicted = s.end, s.evicted
            rows.append(steps)
            file.write(json.dumps(rows, separators=(",", ":")).encode() + b"\n")


def read_small(path: Path) -> list[EngineNotes]:
    """What `write_small` wrote, from time 0 on.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            found = [json.loads(line) for line in file]
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", "restore the file", file=path) from None
    return [_from_small(*rows) for rows in found]


def _from_small(settings: dict[str, Any], requests: list[Any], steps: list[Any]) -> EngineNotes:
    clock = evicted = 0
    read = []
    for gap, took, done, free, gained, batch, preempted in steps:
        start, evicted = clock + gap, evicted + gained
        rows = tuple(zip(batch[0::3], batch[1::3], batch[2::3], strict=True))
        clock = start + took
        read.append(NotedStep(start, clock, rows, tuple(preempted), free, evicted, start + done))
    asked = tuple(
        NotedRequest(
            *(number, at, at + seen, prompt, output, priority),
            tuple((str(owner), count) for owner, count in text),
            dropped,
        )
        for number, (at, seen, prompt, output, priority, text, dropped) in enumerate(requests)
    )
    return EngineNotes(settings, asked, tuple(read))
