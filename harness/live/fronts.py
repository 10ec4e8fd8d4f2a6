"""What the sessions of a cell talk to: our gateway with a scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.live.gateway import GatewaySettings
from harness.live.gauges import Gauges
from harness.live.parts import ReplicaAddress
from harness.live.polling import PollSettings
from harness.live.serving import Policy, ServedGateway, ServeSettings
from harness.live.turns import DriverSettings, Watcher
from harness.sim.driver import Recorder
from harness.sim.settings import SimSettings
from results.records import Label, ReplicaRecord

NO_EXPIRY_S = 1e8
"""Sessions of a cell say when they end; nothing is to be expired under them."""

SILENCE_S = 3600.0
"""An engine of a cell that sends nothing for this long has fallen silent. Our choice: far longer
than a full engine lets prompts queue, so that no result depends on it."""


def cell_gateway_settings(
    sim: SimSettings, *, share: float, emulated: bool, passthrough: bool
) -> ServeSettings:
    """A gateway for one cell: any free ports, no expiry."""
    return ServeSettings(
        port=0,
        capacity_share=share,
        probe_apis=passthrough,
        max_wait_s=sim.max_wait_s,
        driver=DriverSettings(idle_expiry_s=NO_EXPIRY_S, turn_idle_s=SILENCE_S),
        # Emulated engines count four bytes a token, as the replay's texts have: nothing to learn.
        gateway=GatewaySettings(learn_ratio=not emulated),
        poll=PollSettings(interval_s=sim.sampling_interval_s),
    )


class GatewayFront:
    """Our gateway, with one scheduler.

    Args:
        event_log: file for the gateway's events; None keeps none.
        speed: virtual seconds per real second.
        watcher: is told of turns and sessions.
    """

    def __init__(
        self,
        policy: Policy,
        settings: ServeSettings,
        recorder: Recorder,
        label: Label,
        *,
        record_decisions: bool = True,
        event_log: Path | None = None,
        speed: float = 1.0,
        watcher: Watcher | None = None,
    ) -> None:
        self.label: Label = label
        self.url = ""
        self.admin_url: str | None = None
        self.served: ServedGateway
        self._policy, self._settings, self._recorder = policy, settings, recorder
        self._record_decisions, self._event_log, self._speed = record_decisions, event_log, speed
        self._watcher = watcher
        self._before: dict[str, Gauges] = {}
        """The first look at each replica: engines outlive cells."""

    @property
    def clock(self) -> Any:
        """The gateway's, which records are made with."""
        return self.served.clock

    async def start(self, replicas: Sequence[ReplicaAddress]) -> None:
        self.served = ServedGateway(
            self._policy,
            [replica.url for replica in replicas],
            self._settings,
            names=[replica.name for replica in replicas],
            event_log=self._event_log,
            watcher=self._watcher,
            decision=self._recorder.decision if self._record_decisions else None,
            on_gauges=self._saw_gauges,
            kv_events={r.name: r.kv_events for r in replicas if r.kv_events is not None},
            kv_replays={r.name: r.kv_replay for r in replicas if r.kv_replay is not None},
            roles={r.name: r.role for r in replicas},
            bootstrap_ports={
                r.name: r.bootstrap_port for r in replicas if r.bootstrap_port is not None
            },
            speed=self._speed,
        )
        await self.served.start()
        self.url, self.admin_url = self.served.url, self.served.admin_url

    async def failed(self) -> Exception:
        return await self.served.failure

    def release(self, session: str) -> None:
        self.served.driver.release(session)

    def counters(self) -> dict[str, float]:
        forced = self.served.driver.plane.forced_admissions
        counted = dict(self._policy.scheduler.counters())
        return counted if not forced else {**counted, "forced_admissions": forced}

    def facts(self) -> Mapping[str, Any]:
        return {"front": "agentsched"}

    async def close(self) -> None:
        if hasattr(self, "served"):
            await self.served.close()

    def _saw_gauges(self, replica: str, gauges: Gauges) -> None:
        before = self._before.setdefault(replica, gauges)
        self._recorder.replica(replica_record(self.served.clock.now, replica, gauges, before))


def replica_record(
    now: int, replica: str, gauges: Gauges, before: Gauges | None = None
) -> ReplicaRecord:
    """What a poll of gauges tells, as a record.

    Args:
        before: what the engine had counted when the cell began; None: it began with the cell. An
            engine whose counters are below that has been restarted, and counts from 0.
    """
    sample = gauges.sample
    had = (0, 0, 0) if before is None else _counted(before)
    counted = _counted(gauges)
    if any(now_at < at for now_at, at in zip(counted, had, strict=True)):
        had = (0, 0, 0)
    preemptions, computed, generated = (
        now_at - at for now_at, at in zip(counted, had, strict=True)
    )
    return ReplicaRecord(
        time=now,
        replica=replica,
        running=sample.running or 0,
        waiting=sample.waiting or 0,
        kv_used=sample.kv_usage or 0.0,
        kv_cached=None,
        preemptions=preemptions,
        prefill_tokens=computed,
        decode_tokens=generated,
    )


def _counted(gauges: Gauges) -> tuple[int, int, int]:
    """Preemptions, prompt tokens computed here, tokens generated; since the engine started."""
    sample = gauges.sample
    cached = sample.prefix_hits or 0
    received = 0 if gauges.kv is None else gauges.kv.tokens or 0
    computed = max(0, (sample.prompt_tokens or 0) - cached - received)
    return sample.preemptions or 0, computed, sample.generation_tokens or 0


def with_idle_expiry(settings: ServeSettings, seconds: float) -> ServeSettings:
    """For agents that may vanish without a word."""
    return replace(settings, driver=DriverSettings(idle_expiry_s=seconds, turn_idle_s=SILENCE_S))
