"""Every workload by its name: generator profiles, shipped recordings, and trace files."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from agentsched import UsageError
from workloads.model import Origin, Segment, Session, TurnSpec
from workloads.profiles.generate import PROFILES, generate
from workloads.shipped import SHIPPED, Shipped, shipped_file
from workloads.trace import load_trace


@dataclass(frozen=True, slots=True)
class WorkloadInfo:
    """What `agentsched list workloads` shows of a workload."""

    name: str
    origin: Origin
    sessions: int
    """Sessions of a run that does not say how many: top-level ones, without sub-agents."""
    source: str
    licence: str
    note: str


def workload_names() -> tuple[str, ...]:
    """Profiles, then shipped recordings. A path to a native trace is a name too."""
    return (*PROFILES, *(entry.name for entry in SHIPPED))


def load_workload(
    name_or_path: str,
    *,
    sessions: int | None = None,
    seed: int = 0,
    settings: Mapping[str, object] | None = None,
) -> list[Session]:
    """Sessions of a workload, ready to run; sub-agents follow their parents.

    Args:
        name_or_path: one of workload_names(), or a native trace file.
        sessions: how many top-level sessions; None: the profile's own number, or all recorded
            ones. More than were recorded: the recording repeats, the k-th copy of session `id`
            named `id@k`, with text of its own beyond the shared segments, and arriving, where the
            trace says when, one trace length later.
        seed: of the generator; of a recording, the order of its sessions.
        settings: of the profile; a recording has none.

    Raises:
        UsageError: unknown name, bad number or setting.
        TraceError: the trace file cannot be read.
    """
    _check_numbers(sessions, seed)
    if name_or_path in PROFILES:
        count = PROFILES[name_or_path].default_sessions if sessions is None else sessions
        return generate(name_or_path, sessions=count, seed=seed, settings=settings or {})
    if settings:
        raise UsageError(
            f"workload {name_or_path!r} is recorded and has no settings",
            f"set {', '.join(sorted(settings))} on a generated workload: {', '.join(PROFILES)}",
        )
    recorded = _recorded(name_or_path)
    return _arrange(recorded, sessions, seed, name_or_path)


def describe(name: str) -> WorkloadInfo:
    """What a named workload is and where it comes from.

    Raises:
        UsageError: unknown name.
    """
    if name in PROFILES:
        profile = PROFILES[name]
        return WorkloadInfo(
            name, "generated", profile.default_sessions, profile.source, "parameters only",
            profile.note,
        )  # fmt: skip
    entry = _shipped(name)
    if entry is None:
        raise _unknown(name)
    count = sum(session.parent is None for session in _recorded(name))
    return WorkloadInfo(name, "recorded", count, entry.source, entry.licence, entry.note)


def _recorded(name_or_path: str) -> list[Session]:
    entry = _shipped(name_or_path)
    if entry is None:
        path = Path(name_or_path)
        if not path.exists():
            raise _unknown(name_or_path)
        if not path.is_file():
            raise UsageError(
                f"the trace {path} is no file", "a trace is read several times; give a plain file"
            )
        return load_trace(path)
    found = load_trace(shipped_file(entry))
    return [s for s in found if entry.workloads is None or s.workload in entry.workloads]


def _shipped(name: str) -> Shipped | None:
    return next((entry for entry in SHIPPED if entry.name == name), None)


def _unknown(name: str) -> UsageError:
    return UsageError(
        f"unknown workload {name!r}, and no file of that name",
        f"use a trace file or one of: {', '.join(workload_names())}",
    )


def _check_numbers(sessions: int | None, seed: int) -> None:
    if sessions is not None and sessions < 1:
        raise UsageError(f"{sessions} sessions", "ask for at least one session")
    if seed < 0:
        raise UsageError(f"seed {seed} is negative", "give a seed of 0 or more")


def _arrange(
    recorded: Sequence[Session], sessions: int | None, seed: int, name: str
) -> list[Session]:
    roots = [session for session in recorded if session.parent is None]
    families = _families(recorded)
    label = zlib.crc32(Path(name).name.encode())
    order = np.random.default_rng([seed, label]).permutation(len(roots))
    count = len(roots) if sessions is None else sessions
    texts = frozenset(session.id for session in recorded)
    period = _period(roots)
    result: list[Session] = []
    for position in range(count):
        copy, rank = divmod(position, len(roots))
        family = families[roots[int(order[rank])].id]
        later = copy * period
        result.extend(_copy(s, copy + 1, texts, later) if copy else s for s in family)
    return result


def _families(recorded: Sequence[Session]) -> dict[str, list[Session]]:
    """Each top-level session with its sub-agents, parents before children."""
    children: dict[str | None, list[Session]] = {}
    for session in recorded:
        children.setdefault(session.parent, []).append(session)
    result: dict[str, list[Session]] = {}
    for root in children[None]:
        family = [root]
        for member in family:
            family.extend(children.get(member.id, ()))
        result[root.id] = family
    return result


def _period(roots: Sequence[Session]) -> float:
    """Length of the recording: the span of its arrivals and one mean gap, in seconds."""
    arrivals = [session.arrival_s for session in roots if session.arrival_s is not None]
    if len(arrivals) < 2:
        return 0.0
    span = max(arrivals) - min(arrivals)
    return span * len(arrivals) / (len(arrivals) - 1)


def _copy(session: Session, number: int, texts: frozenset[str], later_s: float) -> Session:
    return replace(
        session,
        id=f"{session.id}@{number}",
        parent=None if session.parent is None else f"{session.parent}@{number}",
        turns=tuple(_own_text(turn, number, texts) for turn in session.turns),
        arrival_s=None if session.arrival_s is None else session.arrival_s + later_s,
    )


def _own_text(turn: TurnSpec, number: int, texts: frozenset[str]) -> TurnSpec:
    """A segment `session#turn` is the text of that session: the copy reads its own copy's."""
    if not any(part.id.rpartition("#")[0] in texts for part in turn.shared):
        return turn
    return replace(turn, shared=tuple(_renamed(part, number, texts) for part in turn.shared))


def _renamed(part: Segment, number: int, texts: frozenset[str]) -> Segment:
    owner, _, turn = part.id.rpartition("#")
    return part if owner not in texts else part._replace(id=f"{owner}@{number}#{turn}")
