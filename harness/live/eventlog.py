"""The event log: every event of the control plane and what it led to, as JSON Lines.

Fed into a fresh control plane, the events give the same operations, line by line: `verify` does
that. A line: {"event": NAME, ...its fields, "operations": [...], "progress": [[attempt, tokens]]}.
The first line states scheduler, settings, seed and replicas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import orjson

from agentsched import InputError
from harness.control.ledger import ReplicaConfig
from harness.control.operations import Cancel, Dispatch, Operation, Refuse
from harness.control.plane import ControlPlane
from harness.control.prefix_index import IDLE_LIMIT
from harness.control.records import Capacity
from schedulers import events as ev
from schedulers import registry
from schedulers.commands import Solve, WakeAt
from schedulers.types import PromptRef, PromptRun, ReplicaSample, ToolSignal, Turn, Usage

VERSION = 1
FLUSH_NS = 1_000_000_000


class EventLog:
    """Writes the log.

    Args:
        stream: opened for binary writing; closed by `close`.
    """

    def __init__(
        self,
        stream: IO[bytes],
        scheduler: str,
        settings: Mapping[str, Any],
        seed: int,
        replicas: list[ReplicaConfig],
        *,
        max_wait_s: float | None = None,
        idle_texts: int = IDLE_LIMIT,
    ) -> None:
        self._stream = stream
        self._flushed = 0
        self.problem: str | None = None
        """Why nothing more is logged (a full disk); None: it is."""
        self._closed = False
        head = {
            "version": VERSION,
            "scheduler": scheduler,
            "settings": dict(settings),
            "seed": seed,
            "replicas": [_replica_json(replica) for replica in replicas],
            "max_wait_s": max_wait_s,
            "idle_texts": idle_texts,
        }
        self._stream.write(orjson.dumps(head) + b"\n")

    def close(self) -> None:
        """Nothing is logged any more: what comes yet are timers of a gateway that has ended."""
        self._closed = True
        try:
            self._stream.close()
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        self.problem = self.problem or error.strerror or str(error)

    def write(
        self, event: ev.Event, operations: list[Operation], answers: list[tuple[int, int]]
    ) -> None:
        if self._closed or self.problem is not None:
            return
        line: dict[str, Any] = {"event": type(event).__name__, **_event_json(event)}
        line["operations"] = [operation_json(operation) for operation in operations]
        if answers:
            line["progress"] = answers
        try:
            self._stream.write(orjson.dumps(line) + b"\n")
            if event.now - self._flushed > FLUSH_NS:
                self._stream.flush()
                self._flushed = event.now
        except OSError as error:  # callers need their answers, log or no log
            self._failed(error)


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """The first line on which a replayed log and the log itself disagree."""

    line: int
    event: str
    logged: list[Any]
    replayed: list[Any]


def verify(path: Path) -> tuple[int, Difference | None]:
    """Feed a log into a fresh control plane.

    Returns:
        How many events were fed, and the first difference, if any.

    Raises:
        InputError: the file is no event log; names the line.
        UsageError: its scheduler is not known here.
    """
    lines = _lines(path)
    number, head = next(lines, (0, {}))
    if head.get("version") != VERSION:
        raise InputError("not an event log", "give a file written with --event-log", file=path)
    answers: list[tuple[int, int]] = []
    plane = ControlPlane(
        registry.create(head["scheduler"], head["settings"], head["seed"]),
        [_replica(replica) for replica in head["replicas"]],
        progress=lambda attempt, now: answers.pop(0)[1] if answers else 0,
        max_wait_s=head.get("max_wait_s"),
        idle_texts=head.get("idle_texts", IDLE_LIMIT),
    )
    solves: dict[int, Solve] = {}
    count = 0
    for number, line in lines:
        try:
            event = _event(line, solves)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"not an event: {error!r}", "the log is damaged", file=path, line=number
            ) from None
        answers[:] = [tuple(answer) for answer in line.get("progress", ())]
        operations = plane.handle(event)
        solves.update({o.solve_id: o for o in operations if isinstance(o, Solve)})
        replayed = orjson.loads(orjson.dumps([operation_json(o) for o in operations]))
        count += 1
        if replayed != line["operations"] or answers:
            return count, Difference(number, line["event"], line["operations"], replayed)
    return count, None


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as stream:
        for number, text in enumerate(stream, 1):
            if not text.endswith(b"\n"):
                return  # the writer was stopped in the middle of the last line
            try:
                yield number, orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise InputError(
                    f"not JSON: {error}", "the log is damaged", file=path, line=number
                ) from None


def operation_json(operation: Operation) -> dict[str, Any]:
    """An operation as a JSON object."""
    match operation:
        case Dispatch():
            return {
                "op": "dispatch",
                "attempt": operation.attempt,
                "turn": operation.turn.id,
                "decode": operation.decode,
                "prefill": operation.prefill,
                "annotations": dict(operation.annotations),
            }
        case Refuse():
            after = operation.retry_after_s
            return {
                "op": "refuse",
                "turn": operation.turn.id,
                "reason": operation.reason,
                "retry_after_s": after,
            }
        case Cancel():
            return {"op": "cancel", "attempt": operation.attempt, "reason": operation.reason}
        case WakeAt():
            return {"op": "wake", "time": operation.time}
        case Solve():
            return {"op": "solve", "solve_id": operation.solve_id}


def _replica_json(replica: ReplicaConfig) -> dict[str, Any]:
    capacity = replica.capacity
    return {
        "id": replica.id,
        "role": replica.role,
        "reported": capacity.reported,
        "share": capacity.share,
    }


def _replica(data: Mapping[str, Any]) -> ReplicaConfig:
    capacity = Capacity(data["reported"], share=data["share"])
    return ReplicaConfig(data["id"], data["role"], capacity)


def _event_json(event: ev.Event) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if field.name == "plan":
            continue  # the solver is pure: the replay solves again
        if field.name == "turn":
            value = _turn_json(value)
        fields[field.name] = value
    return fields


def _turn_json(turn: Turn) -> dict[str, Any]:
    return {
        "id": turn.id,
        "session": turn.session,
        "index": turn.index,
        "parent": turn.parent,
        "runs": [list(run) for run in turn.prompt.runs],
        "assistant_messages": turn.prompt.assistant_messages,
    }


def _turn(data: Mapping[str, Any]) -> Turn:
    runs = tuple(PromptRun(*run) for run in data["runs"])
    prompt = PromptRef(runs, data["assistant_messages"])
    return Turn(data["id"], data["session"], data["index"], prompt, data["parent"])


_EVENTS: dict[str, type[ev.Event]] = {
    kind.__name__: kind
    for kind in (
        ev.TurnArrived,
        ev.DispatchFailed,
        ev.LegFinished,
        ev.FirstToken,
        ev.TurnFinished,
        ev.TurnFailed,
        ev.ClientGone,
        ev.ToolStarted,
        ev.ToolHint,
        ev.SessionClosed,
        ev.ReplicaSampled,
        ev.ReplicaLost,
        ev.ReplicaRecovered,
        ev.KvEvents,
        ev.PlanReady,
        ev.Timer,
    )
}
_READERS: dict[str, Callable[[Any], Any]] = {
    "turn": _turn,
    "usage": lambda data: Usage(**data),
    "sample": lambda data: ReplicaSample(**data),
    "tools": lambda data: tuple(ToolSignal(**tool) for tool in data),
}


def _event(line: Mapping[str, Any], solves: dict[int, Solve]) -> ev.Event:
    kind = _EVENTS[line["event"]]
    if kind is ev.PlanReady:
        solve = solves.pop(line["solve_id"])
        return ev.PlanReady(line["now"], solve.solve_id, solve.solver(solve.snapshot))
    values = {
        field.name: _READERS.get(field.name, _same)(line[field.name])
        for field in dataclasses.fields(kind)
    }
    return kind(**values)


def _same(value: Any) -> Any:
    return value
