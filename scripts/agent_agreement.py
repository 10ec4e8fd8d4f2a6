"""How well what the gateway saw of real agents agrees with what they logged themselves.

python -m scripts.agent_agreement RUN

Sessions by name, model calls by number; tools by time: the gateway takes them to start when an
answer is complete, and to have ended when the session's next request comes. Beside that stand what
the agents' client processes told (`agents/events.jsonl`; of Claude Code, its hooks) and the agents'
own logs: trajectories of mini-swe-agent and Terminus 2, Claude Code's session logs. What is logged
between the middle of a turn and the middle of the session's next belongs to the first of them;
turns of one session that overlap are left out.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from agentsched import load_run

WITHIN_MS = 50.0
"""Figures say which share of the differences is no larger than this."""
STARTS = "answer complete at the gateway, tools start at the agent"
ENDS = "tools ended at the agent, next request at the gateway"
ANSWERS = "answer complete at the gateway, in the agent's own log"
LOGGED = "tools ended in the records, in the agent's own log"
ROWS = (STARTS, ENDS, ANSWERS, LOGGED)


@dataclass(frozen=True, slots=True)
class Mark:
    """Something an agent logged; time in nanoseconds since the cell began."""

    at: int
    kind: str
    """`tool_started`, `tool_ended`, `model_ended` of its client process; `answer`, `result` of its
    own log."""


@dataclass(frozen=True, slots=True)
class SeenTurn:
    """A turn in the records; times in nanoseconds since the cell began."""

    arrived: int
    finished: int
    tools_ended: int | None
    """Those before this turn."""


@dataclass(slots=True)
class Agreement:
    """Of one cell."""

    gateway_sessions: frozenset[str] = frozenset()
    agent_sessions: frozenset[str] = frozenset()
    turns: int = 0
    calls: int = 0
    """Model calls that the clients told of."""
    gaps_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Later minus earlier by row; below 0: the other way round."""


def compare_session(turns: Sequence[SeenTurn], marks: Sequence[Mark]) -> dict[str, list[float]]:
    """Differences by row, in milliseconds.

    Args:
        turns: those served, in order.
        marks: of the session, in any order.
    """
    gaps: dict[str, list[float]] = defaultdict(list)
    middles = [(turn.arrived + turn.finished) // 2 for turn in turns]
    for number, turn in enumerate(turns):
        until = middles[number + 1] if number + 1 < len(turns) else None
        after = turns[number + 1] if number + 1 < len(turns) else None
        if after is not None and after.arrived < turn.finished:
            continue
        here = [m for m in marks if middles[number] <= m.at and (until is None or m.at < until)]
        times: dict[str, list[int]] = defaultdict(list)
        for mark in here:
            times[mark.kind].append(mark.at)
        if times["tool_started"] and times["tool_ended"]:
            gaps[STARTS].append((min(times["tool_started"]) - turn.finished) / 1e6)
            if after is not None:
                gaps[ENDS].append((after.arrived - max(times["tool_ended"])) / 1e6)
        if times["answer"]:
            gaps[ANSWERS].append((max(times["answer"]) - turn.finished) / 1e6)
        if times["result"] and after is not None and after.tools_ended is not None:
            gaps[LOGGED].append((max(times["result"]) - after.tools_ended) / 1e6)
    return gaps


def told(folder: Path, zero: int) -> dict[str, list[Mark]]:
    """What the client processes of a cell told, by session."""
    found: dict[str, list[Mark]] = defaultdict(list)
    for event in _lines(folder / "events.jsonl"):
        found[event["session"]].append(Mark(event["time_ns"] - zero, event["kind"]))
    return found


def own_log(folder: Path, zero: int) -> Iterator[Mark]:
    """What the agent of one session wrote into its own log, where that has times."""
    for path in folder.glob("*/*.traj.json"):
        for message in json.loads(path.read_bytes())["messages"]:
            at = message.get("extra", {}).get("timestamp")
            kind = {"assistant": "answer", "tool": "result"}.get(message.get("role"))
            if at is not None and kind is not None:
                yield Mark(round(at * 1e9) - zero, kind)
    for path in folder.glob("trial/agent/trajectory.json"):
        yield from _terminus(json.loads(path.read_bytes()), zero)
    for path in folder.glob("trial/agent/sessions/projects/*/*.jsonl"):
        yield from _claude_code(path, zero)


def _terminus(trajectory: Mapping[str, Any], zero: int) -> Iterator[Mark]:
    """Terminus 2 makes a step when the keystrokes of its answer have been waited for."""
    if trajectory.get("agent", {}).get("name") != "terminus-2":
        return  # of other agents it is made from their own logs
    for step in trajectory["steps"]:
        if step["source"] == "agent" and step.get("tool_calls"):
            yield Mark(_nanoseconds(step["timestamp"]) - zero, "result")


def _nanoseconds(timestamp: str) -> int:
    return round(datetime.fromisoformat(timestamp).timestamp() * 1e9)


def _claude_code(path: Path, zero: int) -> Iterator[Mark]:
    for line in _lines(path):
        content = line.get("message", {}).get("content")
        if line.get("isSidechain") or not isinstance(content, list):
            continue
        at = _nanoseconds(line["timestamp"]) - zero
        if line["type"] == "assistant":
            yield Mark(at, "answer")
        elif any(part.get("type") == "tool_result" for part in content):
            yield Mark(at, "result")


def compare_cell(turns: Mapping[str, Sequence[SeenTurn]], folder: Path) -> Agreement:
    """One cell.

    Args:
        turns: served ones by session.
        folder: what its agents left.
    """
    zero = json.loads((folder / "clock.json").read_text())["zero_unix_ns"]
    events = told(folder, zero)
    found = Agreement(frozenset(turns), frozenset(events))
    for session, seen in turns.items():
        if session not in events:  # a sub-agent: its parent's client tells of its tools
            continue
        found.turns += len(seen)
        found.calls += sum(mark.kind == "model_ended" for mark in events[session])
        marks = [*events[session], *own_log(folder / session, zero)]
        for row, gaps in compare_session(seen, marks).items():
            found.gaps_ms[row] += gaps
    return found


def table(found: Agreement) -> list[str]:
    """As Markdown."""
    same = len(found.gateway_sessions & found.agent_sessions)
    lines = [
        f"sessions: {len(found.gateway_sessions)} at the gateway, {len(found.agent_sessions)} of "
        f"agents, {same} the same; {found.turns} turns"
        + (f", {found.calls} model calls told of" if found.calls else ""),
        "",
        f"| | n | median | 95 % | largest | within {WITHIN_MS:g} ms |",
        "|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        gaps = np.array(found.gaps_ms.get(row, []))
        if len(gaps):
            p50, p95 = np.percentile(np.abs(gaps), [50, 95])
            share = float(np.mean(np.abs(gaps) <= WITHIN_MS))
            lines.append(
                f"| {row} | {len(gaps)} | {p50:.1f} ms | {p95:.1f} ms | "
                f"{gaps[np.argmax(np.abs(gaps))]:.1f} ms | {share:.1%} |"
            )
    return lines


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    run = load_run(parser.parse_args().run)
    for state in run.states:
        folder = state.path / "agents"
        if state.status != "done" or not folder.is_dir():
            continue
        served = run.table(state.cell, "turns").query("status == 'ok'").sort_values("arrived")
        turns: dict[str, list[SeenTurn]] = defaultdict(list)
        columns = zip(*(served[name] for name in _COLUMNS), strict=True)
        for session, arrived, finished, ended in columns:
            known = None if ended is None or ended != ended else int(ended)
            turns[session].append(SeenTurn(int(arrived), int(finished), known))
        print(f"{state.cell.title}\n")
        print("\n".join(table(compare_cell(turns, folder))), end="\n\n")


_COLUMNS = ("session", "arrived", "finished", "tool_end")

if __name__ == "__main__":
    main()
