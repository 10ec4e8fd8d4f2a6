"""The client process's end of its conversation with the harness.

A client module is a `main` that calls `serve` with a function for one assignment. It is run by an
interpreter that need not have agentsched installed, so this module and what it imports need
nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from workloads.agents.base import AgentTask, Assignment, ClientEvent, EndStatus, EventKind


class AgentFailedError(Exception):
    """The agent ended in a way that is a failure; `facts` says what is known of it."""

    def __init__(
        self, error: str, facts: Mapping[str, Any] | None = None, status: EndStatus = "failed"
    ) -> None:
        super().__init__(error)
        self.facts = dict(facts or {})
        self.status = status


class Teller:
    """Writes events, one a line; may be used by several threads.

    Args:
        stream: where the harness listens.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lock = stream, threading.Lock()

    def tell(
        self,
        kind: EventKind,
        session: str,
        *,
        name: str = "",
        status: EndStatus | None = None,
        error: str | None = None,
        facts: Mapping[str, Any] | None = None,
        time_ns: int | None = None,
    ) -> None:
        """Tell the harness.

        Args:
            time_ns: when it happened; None: now.
        """
        at = time.time_ns() if time_ns is None else time_ns
        event = ClientEvent(kind, session, at, name, status, error, dict(facts or {}))
        with self._lock:
            self._stream.write(encode(event))
            self._stream.flush()


Run = Callable[[Assignment, Teller], Mapping[str, Any]]
"""Runs one assignment; returns the facts of its end."""


def serve(run: Run) -> None:
    """Run assignments from standard input until it ends."""
    teller = Teller(_own_output())
    teller.tell("ready", "")
    for line in sys.stdin:
        assignment = decode_assignment(line)
        try:
            facts = run(assignment, teller)
        except AgentFailedError as failed:
            teller.tell(
                "ended",
                assignment.session,
                status=failed.status,
                error=str(failed),
                facts=failed.facts,
            )
        except Exception as error:  # an agent's failure is its session's, not the worker's
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}"
            teller.tell("ended", assignment.session, status="failed", error=reason[:2000])
        else:
            teller.tell("ended", assignment.session, status="finished", facts=facts)


def _own_output() -> TextIO:
    """Standard output for events alone: whatever else is printed goes to standard error."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def client_command(module: str, python: str | None = None) -> list[str]:
    """The command that runs a client module.

    Args:
        python: the interpreter that has the agent's packages; None: this one.
    """
    root = str(Path(__file__).resolve().parents[2])
    # Behind the interpreter's own packages, which may be other versions than those beside us.
    code = f"import sys, runpy; sys.path.append({root!r}); " + (
        f"runpy.run_module({module!r}, run_name='__main__')"
    )
    return [python or sys.executable, "-P", "-c", code]


# Lines.


def encode(message: Assignment | ClientEvent) -> str:
    """One line."""
    return json.dumps(asdict(message), separators=(",", ":"), default=str) + "\n"


def decode_assignment(line: str) -> Assignment:
    """What `encode` made of an assignment.

    Raises:
        ValueError: it is none.
    """
    found = json.loads(line)
    return Assignment(**{**found, "task": AgentTask(**found["task"])})


_KINDS = frozenset({"ready", "model_started", "model_ended", "tool_started", "tool_ended", "ended"})
_ENDS = frozenset({"finished", "failed", "deadline"})


def decode_event(line: bytes | str) -> ClientEvent:
    """What a client process told.

    Raises:
        ValueError: not an event.
    """
    found = json.loads(line)
    if not isinstance(found, dict) or found.get("kind") not in _KINDS:
        raise ValueError("not an event")
    status, facts = found.get("status"), found.get("facts") or {}
    if found["kind"] == "ended" and status not in _ENDS:
        raise ValueError(f"an end with status {status!r}")
    time_ns = found.get("time_ns")
    if isinstance(time_ns, bool) or not isinstance(time_ns, int) or not isinstance(facts, dict):
        raise ValueError("an event has `time_ns`, a whole number, and `facts`, an object")
    error = found.get("error")
    return ClientEvent(
        found["kind"],
        str(found.get("session", "")),
        time_ns,
        str(found.get("name", "")),
        status if found["kind"] == "ended" else None,
        None if error is None else str(error),
        facts,
    )


def messages(lines: Sequence[bytes]) -> Iterator[ClientEvent | str]:
    """Events among lines; what is none comes as text."""
    for line in lines:
        try:
            yield decode_event(line)
        except ValueError:
            yield line.decode("utf-8", "replace").rstrip()
