"""Plays a cell by replaying a trace over HTTP."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.live.http_client import HttpClient
from harness.live.lag import LagProbe, client_problems, percentile
from harness.live.latency import calm_collector, short_slices
from harness.live.parts import Played, Stage
from harness.live.replay import Replayer, ReplaySettings
from workloads.model import Session


@dataclass(frozen=True, slots=True)
class ReplayPlayer:
    """Replays sessions.

    Args:
        workers: sessions active at once; None: each starts at its recorded arrival.
        speed: virtual seconds per real second.
    """

    sessions: Sequence[Session]
    workers: int | None
    settings: ReplaySettings
    speed: float = 1.0

    async def play(self, stage: Stage) -> Played:
        loop = asyncio.get_running_loop()
        client = HttpClient(stage.front.url)
        finished = asyncio.Event()
        replayer = Replayer(
            self.sessions,
            workers=self.workers,
            sender=client,
            clock=stage.clock,
            recorder=stage.recorder,
            settings=replace(self.settings, model=stage.model, context_limit=stage.context_limit),
            release=stage.front.release,
            progress=stage.progress,
            done=finished.set,
        )
        if self.workers is not None:
            await client.open_ahead(min(self.workers, len(self.sessions)))
        stage.ending.drain = replayer.drain
        calm_collector()
        short_slices()
        probe, cpu = LagProbe(loop), _cpu_s()
        started = stage.clock.now
        failure = asyncio.ensure_future(stage.front.failed())
        waiting = asyncio.ensure_future(finished.wait())
        try:
            replayer.start()
            await asyncio.wait({waiting, failure}, return_when=asyncio.FIRST_COMPLETED)
            makespan = stage.clock.now - started
            if failure.done():
                raise failure.result()
        finally:
            for task in (waiting, failure):
                task.cancel()
            probe.stop()
            replayer.stop()
            await client.close()
        counts = replayer.counts
        lag = probe.percentile(99) * self.speed
        dispatch = percentile(counts.dispatch_lags_ns, 99) / 1e6
        problems = client_problems(
            counts.ttft_mean_ms, lag, dispatch, counts.wrong_length, counts.turns
        )
        return Played(
            makespan,
            {"client.wrong_length": counts.wrong_length},
            {"client": "replay"},
            {
                "loop_lag_p50_ms": probe.percentile(50),
                "loop_lag_p99_ms": probe.percentile(99),
                "loop_lag_max_ms": max(probe.lags_ms, default=0.0),
                "dispatch_lag_p99_ms": dispatch,
                "client_cpu_s": _cpu_s() - cpu,
                "client_peak_in_flight": counts.peak_in_flight,
            },
            problems[0] if problems else None,
        )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
