"""A gateway under faults for a long time: does every session end, does anything pile up?

python -m scripts.soak [--minutes 60] [--sessions 160] [--fault-every 10] [--scheduler tao]
    [--replicas 3] [--seed 0] [--json FILE]

Engines (`agentsched emulate --misbehave`) and the gateway (`agentsched serve`, its invariants
checked all the time) are processes of their own; sessions are replayed from this one, a new one
for each that ends. Every few seconds something goes wrong: an engine is killed, stopped, falls
silent, answers nonsense; clients vanish, dawdle, or come in crowds. Shown in the end, and the exit
status 1 if one does not hold: every session ended or failed for a reason that is known to follow
from a fault; the memory of the gateway and its planner, files and tasks are as they were after the
first sixth of the time; its accounts are zero.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from harness.live.clock import LoopClock
from harness.live.http_client import HttpClient
from harness.live.replay import Replayer, ReplaySettings
from harness.live.wire import Request
from results.records import DecisionRecord, ReplicaRecord, SessionRecord, TurnRecord
from scripts._soak import UNKNOWN, Faults, Stage, fetch, footprint, reason_of
from workloads.model import Session, ToolCall, TurnSpec

FLAT = 0.05
"""By how much memory may differ between the start and the end of the time looked at."""
SPARE_FILES = 8
DRAIN_S = 120.0
TURNS, PROMPT, OUTPUT = 6, 400, 24
SAMPLE_S = 5.0


def sessions() -> Iterator[Session]:
    """Agents that mostly wait for their tools, so that two cores can serve 160 of them."""
    number = 0
    while True:
        kept = 0
        turns: list[TurnSpec] = []
        for index in range(TURNS):
            prompt = kept + PROMPT
            pause = 3.0 + (number * 7 + index * 3) % 6
            tools = (ToolCall("bash", pause),) if index < TURNS - 1 else ()
            before = index - 1 if index else None
            turns.append(TurnSpec(prompt, OUTPUT, kept_turn=before, kept_tokens=kept, tools=tools))
            kept = prompt + OUTPUT
        yield Session(f"soak-{number}", tuple(turns), "soak", "generated")
        number += 1


@dataclass(slots=True)
class Tally:
    """Counts what became of turns and sessions."""

    turns: Counter[str] = field(default_factory=Counter)
    sessions: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Why sessions failed, as `reason_of` says it."""

    def turn(self, record: TurnRecord) -> None:
        self.turns[record.status] += 1

    def session(self, record: SessionRecord) -> None:
        self.sessions[record.status] += 1
        if record.status != "finished":
            self.reasons[reason_of(record.error)] += 1

    def replica(self, record: ReplicaRecord) -> None: ...
    def decision(self, record: DecisionRecord) -> None: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """The gateway at one time."""

    at_s: float
    rss: int
    """Bytes, as those of its children: the planner and what starts it."""
    children_rss: int
    fds: int
    processes: int
    tasks: float

    @property
    def memory(self) -> int:
        return self.rss + self.children_rss


class Soak:
    """One run of it."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self.given = given
        options = ["--poll", "1", "--turn-idle", "4", "--turn-total", "120"]
        options += ["--idle-expiry", "60", "--text-memory", "16"]
        self.stage = Stage(folder, given.replicas, given.scheduler, options)
        self.faults = Faults(self.stage, given.seed, min(5.0, given.fault_every * 0.6))
        self.tally = Tally()
        self.samples: list[Sample] = []
        self.problems: list[str] = []
        self.counts: dict[str, int] = {}

    def run(self) -> dict[str, Any]:
        try:
            self.stage.start()
            wall = time.monotonic()
            asyncio.run(self._run())
            wall = time.monotonic() - wall
        finally:
            self.faults.mend(everything=True)
            statuses = self.stage.stop()
        if statuses["gateway"] != 0:
            log = self.stage.gateway.log.read_text()[-1500:]
            self.problems.append(f"the gateway ended with {statuses['gateway']}: {log}")
        return self._report(wall)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        client, admin = HttpClient(self.stage.gateway.url), HttpClient(self.stage.admin)
        length = self.given.minutes * 60
        enough = int(self.given.sessions * (2 + length / 15))

        def release(session: str) -> None:
            admin.send(Request("POST", f"/sessions/{session}/release"), _Unheard())

        replayer = Replayer(
            list(islice(sessions(), enough)),
            workers=self.given.sessions,
            sender=client,
            clock=LoopClock(loop),
            recorder=self.tally,
            settings=ReplaySettings(start_spread_s=min(5.0, length / 10), retry_delay_s=1.0),
            release=release,
            progress=lambda sessions, turns: None,
        )
        replayer.start()
        start = loop.time()
        next_fault, next_sample = start + self.given.fault_every, start
        while (now := loop.time()) < start + length and self.stage.gateway.running:
            await asyncio.to_thread(self.faults.mend)
            if now >= next_fault:
                kind = await asyncio.to_thread(self.faults.next)
                next_fault += self.given.fault_every
                print(f"{now - start:7.1f} s  {kind}", file=sys.stderr, flush=True)
            if now >= next_sample:
                await asyncio.to_thread(self._sample, now - start)
                next_sample += SAMPLE_S
            await asyncio.sleep(0.25)
        await asyncio.to_thread(self.faults.mend, everything=True)
        replayer.take_no_more()
        await self._drain(replayer)
        replayer.stop()
        await client.close()
        await admin.close()
        if self.stage.gateway.running:
            await asyncio.to_thread(self._look_at_accounts)

    async def _drain(self, replayer: Replayer) -> None:
        until = time.monotonic() + DRAIN_S
        while replayer.counts.active and time.monotonic() < until and self.stage.gateway.running:
            await asyncio.sleep(0.25)
        if replayer.counts.active:
            self.problems.append(f"{replayer.counts.active} sessions did not end in {DRAIN_S:g} s")

    def _sample(self, at_s: float) -> None:
        process = self.stage.gateway.process
        assert process is not None
        tasks = self.stage.gauge("tasks")
        try:
            found = footprint(process.pid)
        except OSError:  # it has ended; that is told elsewhere
            return
        self.samples.append(Sample(at_s, **found, tasks=tasks or 0.0))
        if len(self.samples) % 60 == 1:
            print(f"{at_s:7.1f} s  {found} tasks {tasks} {dict(self.tally.sessions)}", flush=True)

    def _look_at_accounts(self) -> None:
        """With no session left, nothing may be accounted for."""
        until = time.monotonic() + 90.0  # sessions nobody released expire after 60 s
        while time.monotonic() < until:
            state = fetch(f"{self.stage.admin}/state")
            if not state or not (state["sessions"] or state["in_flight"] or state["waiting"]):
                break
            time.sleep(0.5)
        if not state:
            self.problems.append("the admin port does not answer")
            return
        self.counts = state["counts"]
        for name in ("sessions", "in_flight", "waiting"):
            if state[name]:
                self.problems.append(f"{state[name]} {name} left in the end")
        for replica in state["replicas"]:
            for name in ("in_flight", "queued_prefill_tokens", "sessions"):
                if replica[name]:
                    self.problems.append(f"{replica['id']}: {name} is {replica[name]} in the end")

    def _report(self, wall: float) -> dict[str, Any]:
        for reason, count in self.tally.reasons.items():
            if reason.startswith(UNKNOWN):
                self.problems.append(f"{count} session(s) failed, and no fault says why: {reason}")
        if not self.tally.sessions["finished"]:
            self.problems.append("no session finished")
        figures = self._flatness()
        return {
            "wall_s": round(wall, 1),
            "sessions": dict(self.tally.sessions),
            "turns": dict(self.tally.turns),
            "reasons": dict(self.tally.reasons.most_common()),
            "faults": dict(sorted(self.faults.happened.items())),
            "gateway": self.counts,
            **figures,
            "problems": self.problems,
        }

    def _flatness(self) -> dict[str, Any]:
        """Compare the window after the first sixth of the time with the last one."""
        length = self.given.minutes * 60
        sixth = length / 6
        late = [s for s in self.samples if s.at_s >= length - sixth]
        early = [s for s in self.samples if sixth <= s.at_s < 2 * sixth]
        if not early or not late:
            self.problems.append("too few samples of the gateway")
            return {}
        figures: dict[str, Any] = {}
        for name in ("memory", "rss", "children_rss", "fds", "tasks"):
            first = statistics.median(getattr(s, name) for s in early)
            last = statistics.median(getattr(s, name) for s in late)
            peak = max(getattr(s, name) for s in self.samples)
            figures[name] = {"early": first, "late": last, "peak": peak}
        memory, fds, tasks = figures["memory"], figures["fds"], figures["tasks"]
        grown = memory["late"] / memory["early"] - 1
        figures["memory_growth"] = round(grown, 4)
        if self.given.minutes >= 30 and grown > FLAT:  # before that, caches are still filling
            self.problems.append(f"memory grew by {grown:.1%}")
        # In a short run connections are still being made: two a session is all there may be.
        share = 0.25 if self.given.minutes >= 30 else 2.5
        allowed = self.given.sessions * share + SPARE_FILES
        for name, found in (("files", fds), ("tasks", tasks)):
            if found["late"] - found["early"] > allowed:
                self.problems.append(f"{name} grew from {found['early']:g} to {found['late']:g}")
        return figures


class _Unheard:
    def head(self, status: int, headers: object) -> None: ...
    def data(self, part: bytes) -> None: ...
    def end(self) -> None: ...
    def lost(self, reason: str, *, unreachable: bool) -> None: ...


def table(sessions: dict[str, int], reasons: dict[str, int]) -> str:
    """What became of all sessions, a line for each reason."""
    rows = {"finished": sessions.get("finished", 0), **reasons}
    return "\n".join(["sessions  became", *(f"{count:8,}  {why}" for why, count in rows.items())])


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--sessions", type=int, default=160)
    parser.add_argument("--fault-every", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--scheduler", default="tao")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None, help="also write the report here")
    return parser.parse_args(given)


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory() as folder:
        report = Soak(given, Path(folder)).run()
    text = json.dumps(report, indent=1)
    print(text)
    print(table(report["sessions"], report["reasons"]))
    if given.json is not None:
        given.json.write_text(text + "\n")
    sys.exit(1 if report["problems"] else 0)


if __name__ == "__main__":
    main()
