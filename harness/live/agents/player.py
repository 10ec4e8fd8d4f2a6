"""Plays a cell with real agents: keeps as many client processes busy as there are workers.

Nothing is retried: a session whose agent fails, crashes, hangs or fills the disk is recorded as
failed or past its deadline, and the worker goes on with the next task, in a new process where the
old one cannot be used any more.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from harness.live.agents.background import Background
from harness.live.agents.clients import ClientProcess, Ended
from harness.live.agents.crew import Crew
from harness.live.agents.disk import CHECK_S, DiskWatch
from harness.live.agents.records import TurnBook
from harness.live.agents.seen import recorded
from harness.live.lag import LagProbe
from harness.live.latency import calm_collector, short_slices
from harness.live.loops import run_all
from harness.live.parts import Played, Stage
from workloads.agents.base import (
    CONTAINER,
    SCRATCH,
    AgentDriver,
    AgentTask,
    Assignment,
    ClientEvent,
)
from workloads.agents.client import encode
from workloads.agents.limits import ClientLimits, split_limits
from workloads.agents.mixed import part_of

FOLDER = "agents"
"""Folder of a cell for what the agents leave: a folder a session, `events.jsonl` with all that
client processes told, `sessions.jsonl` with how each session ended, a log a worker."""
SESSIONS = "sessions.jsonl"
CLOCK = "clock.json"
"""When the cell's clock stood at 0, as Unix time: to compare with the agents' own logs."""
CONCURRENCY_SHARE = 0.9
"""While tasks are waiting, on average this share of the workers must be at one. Our choice."""
STRAGGLER_S = 2.0
"""How long the gateway may take to notice that the last client processes are gone. Our choice."""


class AgentPlayer:
    """Plays tasks with the agents of a driver.

    Args:
        settings: of the workload; the limits of `workloads.agents.limits` may be among them.
        workers: sessions active at once, each in a client process of its own.
        background: chat beside the agents.

    Raises:
        UsageError: a limit is not a number above 0.
    """

    def __init__(
        self,
        driver: AgentDriver,
        settings: Mapping[str, Any],
        workers: int,
        tasks: Sequence[AgentTask],
        background: Background | None = None,
    ) -> None:
        self.watcher = TurnBook(driver.name)
        """For the gateway in front of the agents, so that turns are recorded as it sees them."""
        self._driver, self._workers, self._tasks = driver, workers, tasks
        self._background = background
        self._limits, self._settings = split_limits(settings)

    async def play(self, stage: Stage) -> Played:
        """Play all tasks.

        Raises:
            AgentschedError: client processes do not start, or the front broke.
        """
        folder = stage.folder / FOLDER
        folder.mkdir()
        chat = self._background
        strangers = frozenset[str]() if chat is None else chat.names
        async with recorded(stage, self.watcher, strangers) as (url, release):
            with (folder / "events.jsonl").open("w", encoding="utf-8") as log:
                troupe = _Troupe(
                    stage,
                    self._driver,
                    self._settings,
                    self._limits,
                    self.watcher,
                    folder,
                    log,
                    url,
                    release,
                    deque(self._tasks),
                    min(self._workers, len(self._tasks)),
                    Crew(self._driver, self._settings, self._limits, folder),
                    chat,
                )
                return await troupe.play(self._workers)


@dataclass(slots=True)
class _Troupe:
    """The client processes of one cell."""

    stage: Stage
    driver: AgentDriver
    settings: Mapping[str, Any]
    limits: ClientLimits
    book: TurnBook
    folder: Path
    log: TextIO
    url: str
    release: Callable[[str], None]
    tasks: deque[AgentTask]
    size: int
    crew: Crew
    background: Background | None
    running: dict[str, tuple[ClientProcess, Path]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    rewards: list[float] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    uncleared: set[Path] = field(default_factory=set)
    """Folders of sessions that may hold scratch files."""
    last_change: int = 0
    active_time: int = 0
    """Integral of the active sessions over time, while tasks are waiting."""
    waiting_until: int = 0
    """When the last task was taken up."""
    parts: dict[str, Counter[str]] = field(default_factory=dict)
    """How sessions ended, by part of a mix."""

    async def play(self, workers: int) -> Played:
        total, probe = len(self.tasks), LagProbe(asyncio.get_running_loop())
        self.last_change = began = self.stage.clock.now
        watching: asyncio.Task[None] | None = None
        counts = Counter(task.part for task in self.tasks)
        try:
            await self.crew.start({part: min(self.size, n) for part, n in counts.items()})
            calm_collector()
            short_slices()
            zero = time.time_ns() - self.stage.clock.now
            (self.folder / CLOCK).write_text(json.dumps({"zero_unix_ns": zero}) + "\n")
            started = self.last_change = self.waiting_until = self.stage.clock.now
            watching = asyncio.ensure_future(self._watch_disk())
            if self.background is not None:
                self.background.start(self.stage)
            await self._until_played([self._work() for _ in range(self.size)])
            makespan = self.stage.clock.now - started
            if self.background is not None:
                await self.background.finish()
            await self.crew.close()
        finally:
            probe.stop()
            if watching is not None:
                watching.cancel()
            if self.background is not None:
                await self.background.stop()
            await self.crew.dismiss()
            for folder in self.uncleared:  # of sessions that were cut short
                await asyncio.to_thread(_clear, folder, killed=True)
        await self._stragglers()
        self.book.close()
        timing = {
            "clients_start_s": (started - began) / 1e9,
            "loop_lag_p50_ms": probe.percentile(50),
            "loop_lag_p99_ms": probe.percentile(99),
            "loop_lag_max_ms": max(probe.lags_ms, default=0.0),
        }
        mean = self._mean_active(started)
        counters = self._counters(mean)
        invalid = self._invalid(total, workers, mean)
        return Played(makespan, counters, self._facts(), timing, invalid)

    async def _until_played(self, work: Sequence[Coroutine[Any, Any, Any]]) -> None:
        """Until all workers are done; raises what the front broke of."""
        failure = asyncio.ensure_future(self.stage.front.failed())
        playing = asyncio.ensure_future(run_all(work))
        try:
            await asyncio.wait({playing, failure}, return_when=asyncio.FIRST_COMPLETED)
            if failure.done():
                raise failure.result()
            playing.result()
        finally:
            for task in (playing, failure):
                task.cancel()
            await asyncio.gather(playing, failure, return_exceptions=True)

    # Workers.

    async def _work(self) -> None:
        while self.tasks:
            task = self._take()
            name = self.crew.take(task.part)
            ended = await self._session(self.crew.clients[name], task)
            if ended.alive:
                self.crew.give_back(task.part, name)
            elif any(other.part == task.part for other in self.tasks):
                self.counts["restarts"] += 1
                await self.crew.replace(task.part, name)

    def _take(self) -> AgentTask:
        self._account()
        task = self.tasks.popleft()
        if not self.tasks:
            self.waiting_until = self.stage.clock.now
        return task

    async def _session(self, client: ClientProcess, task: AgentTask) -> Ended:
        name = self._name(task.id)
        folder = self.folder / name
        folder.mkdir()
        self.uncleared.add(folder)
        self._account()
        self.running[name] = (client, folder)
        self.counts["peak_active"] = max(self.counts["peak_active"], len(self.running))
        self.book.assigned(name, self.stage.clock.now, task.part)
        _, settings = part_of(self.driver, self.settings, task.part)
        try:
            ended = await client.run(
                Assignment(
                    session=name,
                    task=task,
                    base_url=self.url,
                    admin_url=self.stage.front.admin_url,
                    model=self.stage.model,
                    folder=str(folder),
                    settings=settings,
                ),
                self._limit_s(task),
                self._told,
            )
        finally:
            self._account()
            del self.running[name]
        self._end(name, task, ended)
        if not ended.alive:
            self.counts["killed"] += 1
            await client.kill()
        await asyncio.to_thread(_clear, folder, killed=not ended.alive)
        self.uncleared.discard(folder)
        return ended

    def _limit_s(self, task: AgentTask) -> float:
        if task.timeout_s is None:
            return self.limits.session_limit_s
        return min(self.limits.session_limit_s, task.timeout_s + self.limits.grace_s)

    def _name(self, task: str) -> str:
        """A session for the task: fit for headers, logs and folders, and used once."""
        plain = re.sub(r"[^A-Za-z0-9._@+-]", "_", task)[:120].lstrip(".") or "task"
        name, number = plain, 2
        while name in self.names:
            name, number = f"{plain}~{number}", number + 1
        self.names.add(name)
        return name

    def _told(self, event: ClientEvent) -> None:
        self.log.write(encode(event))
        at = self.stage.clock.now - (time.time_ns() - event.time_ns)
        if event.kind == "tool_started":
            self.counts["tools"] += 1
            self.book.tool_started(event.session, event.name, at)
        elif event.kind == "tool_ended":
            self.book.tool_ended(event.session, event.name, at)

    def _end(self, name: str, task: AgentTask, ended: Ended) -> None:
        now = self.stage.clock.now
        for session in (name, *self.book.ended(name, ended.status, ended.error, now)):
            self.release(session)
        self.counts["ended"] += 1
        self.counts[ended.status] += 1
        self.counts["crashed"] += ended.crashed
        if task.part:
            self.parts.setdefault(task.part, Counter()).update(["sessions", ended.status])
        self.outcomes[str(ended.facts.get("exit_status", ended.status))] += 1
        reward = ended.facts.get("reward")
        if isinstance(reward, (int, float)) and not isinstance(reward, bool):
            self.rewards.append(float(reward))
        line = {
            "session": name,
            "task": task.id,
            **({"part": task.part} if task.part else {}),
            "status": ended.status,
            "error": ended.error,
            "facts": dict(ended.facts),
        }
        with (self.folder / SESSIONS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=str) + "\n")
        self.log.flush()
        self.stage.progress(self.counts["ended"], self.book.turns)

    # The whole.

    async def _watch_disk(self) -> None:
        watch = DiskWatch(self.folder, self.limits)
        while True:
            await asyncio.sleep(CHECK_S)
            folders = {name: folder for name, (_, folder) in self.running.items()}
            stopped = await asyncio.to_thread(watch.check, time.monotonic(), folders)
            self.counts["peak_folder_mb"] = round(watch.peak_mb)
            for name, reason in stopped.items():
                if name in self.running:
                    self.counts["stopped_for_disk"] += 1
                    self.running[name][0].stop_session(reason)

    async def _stragglers(self) -> None:
        """Let the gateway notice the connections of killed clients."""
        if self.counts["killed"]:
            end = time.monotonic() + STRAGGLER_S
            await asyncio.sleep(STRAGGLER_S / 10)
            while self.book.unclosed and time.monotonic() < end:
                await asyncio.sleep(0.02)

    def _account(self) -> None:
        """To be called before the number of sessions or of waiting tasks changes."""
        now = self.stage.clock.now
        if self.tasks:
            self.active_time += len(self.running) * (now - self.last_change)
        self.last_change = now

    def _mean_active(self, started: int) -> float:
        """Sessions active on average while tasks were waiting; the peak if none ever was."""
        window = self.waiting_until - started
        return self.active_time / window if window > 1e9 else float(self.counts["peak_active"])

    def _counters(self, mean_active: float) -> dict[str, float]:
        shown = (
            *("finished", "failed", "deadline", "crashed", "restarts", "tools"),
            *("garbage_lines", "stopped_for_disk", "peak_folder_mb", "peak_active"),
        )
        self.counts["garbage_lines"] = self.crew.garbage_lines
        counters = {f"agents.{name}": float(self.counts[name]) for name in shown}
        if self.background is not None:
            counters |= self.background.counters()
        return {**counters, "agents.mean_active": mean_active}

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "client": f"agents: {self.driver.name}",
            "client_processes": len(self.crew.clients),
            "agent_outcomes": dict(sorted(self.outcomes.items())),
            "cache_source": "engine usage",
        }
        if self.parts:
            facts["agent_parts"] = {part: dict(ends) for part, ends in sorted(self.parts.items())}
        if self.rewards:
            facts["agent_reward_mean"] = sum(self.rewards) / len(self.rewards)
        return facts

    def _invalid(self, total: int, workers: int, mean_active: float) -> str | None:
        peak, wanted = self.counts["peak_active"], min(workers, total)
        if peak < wanted:
            return f"only {peak} of {wanted} workers were ever active"
        if mean_active < CONCURRENCY_SHARE * wanted:
            return (
                f"on average {mean_active:.1f} of {wanted} workers were active while tasks waited, "
                f"less than {CONCURRENCY_SHARE:.0%}"
            )
        return None if self.background is None else self.background.ran_out()


def _clear(folder: Path, *, killed: bool) -> None:
    """Remove a session's scratch, and the container that a killed client left."""
    container = folder / CONTAINER
    if killed and container.exists():
        _remove_container(container.read_text().strip())
    shutil.rmtree(folder / SCRATCH, ignore_errors=True)


def _remove_container(name: str) -> None:
    import subprocess

    program = shutil.which("docker")
    if program is not None and name:
        subprocess.run([program, "rm", "-f", name], capture_output=True, timeout=60, check=False)
