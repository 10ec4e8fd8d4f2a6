"""One replay against an endpoint: the client, what it recorded, and how loaded it was itself."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import uvloop

from agentsched import AgentschedError, UsageError
from harness.live.clock import LoopClock
from harness.live.daemon import Stopping, Tell
from harness.live.http_client import HttpClient
from harness.live.lag import LagProbe, client_problems, percentile
from harness.live.latency import calm_collector, room_for_sockets
from harness.live.login import WITH_AUTHORITY, WITH_TOKEN, Login
from harness.live.replay import Replayer, ReplaySettings
from harness.live.wire import Request
from harness.sim.driver import Recorder
from workloads.model import Session

ANSWER_S = 30.0
"""How long the endpoint may take to answer before a replay begins. Our choice."""


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """What the client says of the run and of itself."""

    makespan_ns: int
    sessions: int
    turns: int
    output_tokens: int
    wrong_length: int
    """Answers of another length than the trace has."""
    workers: int | None
    peak_active: int
    peak_in_flight: int
    ttft_mean_ms: float
    ttft_p99_ms: float
    loop_lag_p50_ms: float
    loop_lag_p99_ms: float
    loop_lag_max_ms: float
    dispatch_lag_p99_ms: float
    cpu_s: float
    rss_mb: float
    interrupted: bool

    @property
    def problems(self) -> list[str]:
        """Why the result must not be used; empty if it can be."""
        found = client_problems(
            self.ttft_mean_ms,
            self.loop_lag_p99_ms,
            self.dispatch_lag_p99_ms,
            self.wrong_length,
            self.turns,
        )
        if self.workers is not None and self.peak_active < self.workers:
            found.append(f"only {self.peak_active} of {self.workers} workers were ever active")
        return found

    @property
    def timing(self) -> dict[str, float]:
        """The client's measurements of itself."""
        return {
            "loop_lag_p50_ms": self.loop_lag_p50_ms,
            "loop_lag_p99_ms": self.loop_lag_p99_ms,
            "loop_lag_max_ms": self.loop_lag_max_ms,
            "dispatch_lag_p99_ms": self.dispatch_lag_p99_ms,
            "client_cpu_s": self.cpu_s,
            "client_rss_mb": self.rss_mb,
        }


def replay(
    url: str,
    sessions: Sequence[Session],
    *,
    workers: int | None,
    settings: ReplaySettings,
    recorder: Recorder,
    admin_url: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    login: Login | None = None,
    admin_login: Login | None = None,
    tell: Tell = lambda line: None,
) -> ReplaySummary:
    """Play sessions against the endpoint at `url` (without /v1); ends early on SIGINT or
    SIGTERM: turns that run then may end, unless it comes twice.

    Args:
        admin_url: the gateway's admin port, told of sessions that end before their last turn.
        login: to the endpoint; `admin_login`: to the admin port.

    Raises:
        UsageError: a URL is none, or one asks for another token or certificate.
        AgentschedError: nothing answers there.
    """
    client = _client(url.rstrip("/").removesuffix("/v1"), login or Login())
    admin = _client(admin_url, admin_login or Login()) if admin_url is not None else None
    room_for_sockets()
    return uvloop.run(_replay(client, admin, sessions, workers, settings, recorder, progress, tell))


def _client(url: str, login: Login) -> HttpClient:
    return HttpClient(url, key=login.token, tls=login.tls_for(url))


async def _replay(
    client: HttpClient,
    admin: HttpClient | None,
    sessions: Sequence[Session],
    workers: int | None,
    settings: ReplaySettings,
    recorder: Recorder,
    progress: Callable[[int, int], None] | None,
    tell: Tell,
) -> ReplaySummary:
    loop = asyncio.get_running_loop()
    try:
        await _check(client, "/v1/models")
        if admin is not None:
            await _check(admin, "/state")
        clock, stopping, finished = LoopClock(loop), Stopping(), asyncio.Event()

        def release(session: str) -> None:
            if admin is not None:
                admin.send(
                    Request("POST", f"/sessions/{quote(session, safe='')}/release"), _Unheard()
                )

        replayer = Replayer(
            sessions,
            workers=workers,
            sender=client,
            clock=clock,
            recorder=recorder,
            settings=settings,
            release=release,
            progress=progress,
            done=finished.set,
        )
        if workers is not None:
            # All start at once: that they connect as well would be counted to their first tokens.
            await client.open_ahead(min(workers, len(sessions)))
        calm_collector()
        probe, cpu = LagProbe(loop), _cpu_s()
        replayer.start()
        waits = [asyncio.ensure_future(e.wait()) for e in (finished, stopping.told)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if stopping.told.is_set():
            await stopping.drained(replayer.drain, tell)
        makespan = clock.now
        replayer.stop()
        probe.stop()
        return _summary(replayer, probe, makespan, workers, _cpu_s() - cpu, not finished.is_set())
    finally:
        await client.close()
        if admin is not None:
            await admin.close()


async def _check(client: HttpClient, path: str) -> None:
    """Raises AgentschedError unless something answers, and lets us in."""
    first = _First()
    call = client.send(Request("GET", path, {"accept": "*/*"}), first)
    try:
        async with asyncio.timeout(ANSWER_S):
            await first.known.wait()
    except TimeoutError:
        first.reason = f"{client.url} does not answer in {ANSWER_S:g} s"
    call.cancel()
    if first.status in (401, 403):
        raise UsageError(f"{client.url} asks for a token", WITH_TOKEN)
    if "certificate" in first.reason:
        raise UsageError(first.reason, WITH_AUTHORITY)
    if not first.status:
        raise AgentschedError(
            f"nothing answers at {client.url}: {first.reason}",
            "start the gateway or engine, and check the address",
        )


class _Unheard:
    """The receiver of an answer that nobody needs."""

    def head(self, status: int, headers: object) -> None: ...
    def data(self, part: bytes) -> None: ...
    def end(self) -> None: ...
    def lost(self, reason: str, *, unreachable: bool) -> None: ...


class _First(_Unheard):
    """What became of a request."""

    def __init__(self) -> None:
        self.status = 0
        self.reason = ""
        self.known = asyncio.Event()

    def head(self, status: int, headers: object) -> None:
        self.status = status

    def end(self) -> None:
        self.known.set()

    def lost(self, reason: str, *, unreachable: bool) -> None:
        self.reason = reason
        self.known.set()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _summary(
    replayer: Replayer,
    probe: LagProbe,
    makespan: int,
    workers: int | None,
    cpu_s: float,
    interrupted: bool,
) -> ReplaySummary:
    counts = replayer.counts
    ttfts = counts.ttfts_ns
    return ReplaySummary(
        makespan_ns=makespan,
        sessions=counts.sessions,
        turns=counts.turns,
        output_tokens=counts.output_tokens,
        wrong_length=counts.wrong_length,
        workers=workers,
        peak_active=counts.peak_active,
        peak_in_flight=counts.peak_in_flight,
        ttft_mean_ms=counts.ttft_mean_ms,
        ttft_p99_ms=percentile(ttfts, 99) / 1e6,
        loop_lag_p50_ms=probe.percentile(50),
        loop_lag_p99_ms=probe.percentile(99),
        loop_lag_max_ms=max(probe.lags_ms, default=0.0),
        dispatch_lag_p99_ms=percentile(counts.dispatch_lags_ns, 99) / 1e6,
        cpu_s=cpu_s,
        rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        interrupted=interrupted,
    )
