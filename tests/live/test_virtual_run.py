"""The gateway on emulated engines under a virtual clock is the simulator, decision by decision."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from harness.capacity import Cluster, resolve_cluster
from harness.live.run import run_emulated
from harness.sim.engine_types import EngineParams
from harness.sim.run import simulate
from harness.sim.settings import Fault, SimSettings
from results.records import DecisionRecord, ReplicaRecord, SessionRecord, TurnRecord
from schedulers import registry
from workloads.model import Segment, Session, ToolCall, TurnSpec

LIMIT = 8192
BLOCKS = 300
"""4,800 tokens a replica: a few sessions fill it."""


@dataclass(slots=True)
class Records:
    turns: list[TurnRecord] = field(default_factory=list)
    sessions: list[SessionRecord] = field(default_factory=list)
    replicas: list[ReplicaRecord] = field(default_factory=list)
    decisions: list[DecisionRecord] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    """Of KV handed over."""

    def turn(self, record: TurnRecord) -> None:
        self.turns.append(record)

    def session(self, record: SessionRecord) -> None:
        self.sessions.append(record)

    def replica(self, record: ReplicaRecord) -> None:
        self.replicas.append(record)

    def decision(self, record: DecisionRecord) -> None:
        self.decisions.append(record)


def workload(seed: int, count: int = 14) -> list[Session]:
    """Agents with shared beginnings, parallel tools, prompts cut back, replies rewritten, equal
    gaps, and sub-agents.

    Cuts keep at least four tokens of a text: of less, a gateway that reads text sees nothing.
    """
    rng = random.Random(seed)
    sessions: list[Session] = []
    for number in range(count):
        turns: list[TurnSpec] = []
        for index in range(rng.randint(1, 6)):
            # Whole seconds and equal lengths, so that many things fall on the same nanosecond.
            tools = tuple(
                ToolCall(rng.choice(("bash", "read")), float(rng.randint(0, 3)), None, i > 0)
                for i in range(rng.randint(0, 2))
            )
            if tools and rng.random() < 0.3:
                tools = (replace(tools[0], hint_s=tools[0].seconds), *tools[1:])
            kept, kept_tokens = index - 1, 0
            if index:
                kept = index - 1 if rng.random() < 0.8 else rng.randrange(index)
                kept_tokens = _kept(turns[kept], rng)
            turns.append(
                TurnSpec(
                    new_tokens=rng.choice((40, 100, 333)),
                    output_tokens=rng.choice((1, 8, 30)),
                    kept_turn=kept if index else None,
                    kept_tokens=kept_tokens,
                    shared=() if index else (Segment("tools", 200, 800),),
                    tools=tools,
                    wait_s=float(rng.randint(0, 1)),
                )
            )
        parent = spawn = None
        if sessions and rng.random() < 0.2:
            parent, spawn = sessions[0].id, 0
        sessions.append(
            Session(f"s{number}", tuple(turns), "test", "generated", parent, spawn_turn=spawn)
        )
    return sessions


def _kept(turn: TurnSpec, rng: random.Random) -> int:
    """Tokens that a later turn keeps: all, part of the reply, all but the reply, or less."""
    whole = turn.prompt_tokens + turn.output_tokens
    kind = rng.random()
    if kind < 0.2 and turn.output_tokens > 4:
        return whole - rng.randrange(0, turn.output_tokens - 4)
    if kind < 0.4:
        return turn.prompt_tokens
    if kind < 0.5:
        return turn.prompt_tokens - rng.randrange(4, 36)
    return whole


def small_cluster() -> Cluster:
    cluster = resolve_cluster("qwen3-32b", "4x2xh100")
    small = [replace(r, kv_blocks=BLOCKS, kv_tokens=BLOCKS * 16) for r in cluster.replicas[:2]]
    return replace(cluster, replicas=tuple(small))


def split_cluster() -> Cluster:
    """A prefill replica and two that decode."""
    cluster = resolve_cluster("qwen3-32b", "4x2xh100")
    roles = zip(cluster.replicas, ("prefill", "decode", "decode"), strict=False)
    small = [replace(r, kv_blocks=BLOCKS, kv_tokens=BLOCKS * 16, role=role) for r, role in roles]
    return replace(cluster, replicas=tuple(small))


def play(
    sessions: list[Session],
    scheduler: str,
    settings: SimSettings,
    *,
    live: bool,
    cluster: Cluster | None = None,
    engine: EngineParams | None = None,
    bootstrap: bool = False,
) -> Records:
    records = Records()
    player: Any = partial(run_emulated, time_scale=None) if live else simulate
    outcome = player(
        sessions,
        workers=5,
        scheduler=registry.create(scheduler),
        cluster=cluster or small_cluster(),
        settings=settings,
        engine=engine or EngineParams(),
        recorder=records,
        **({"bootstrap": bootstrap} if live else {}),
    )
    records.counters = {k: v for k, v in outcome.counters.items() if k.startswith("kv.")}
    return records


REPLICAS = [r.id for r in small_cluster().replicas]
FAULTS = (
    Fault(3.0, REPLICAS[0], "lost"),
    Fault(6.0, REPLICAS[0], "recovered"),
    Fault(7.0, REPLICAS[1], "metrics-stop"),
    Fault(9.0, REPLICAS[1], "metrics-resume"),
)


@pytest.mark.parametrize("faults", [(), FAULTS], ids=["calm", "faults"])
@pytest.mark.parametrize(
    "scheduler", ["round-robin", "cache-aware", "smetric", "thunderagent", "tao"]
)
def test_equal_decisions_and_times(scheduler: str, faults: tuple[Fault, ...]) -> None:
    """Every decision and every turn's times, to the nanosecond.

    Not compared: the longest gap between tokens (a virtual client asks for tokens now and then,
    so it does not see each come) and gauge records, which hold less than the simulator knows.
    """
    for seed in range(4):
        sessions = workload(seed)
        settings = SimSettings(sampling_interval_s=1.0, faults=faults, context_limit=LIMIT)
        sim = play(sessions, scheduler, settings, live=False)
        live = play(sessions, scheduler, settings, live=True)
        assert len(sim.decisions) > 20
        assert live.decisions == sim.decisions
        assert [_seen(t) for t in live.turns] == [_seen(t) for t in sim.turns]
        assert live.sessions == sim.sessions
        assert {t.status for t in sim.turns} == {"ok"}


SPLIT_FAULTS = (
    Fault(3.0, "r1", "lost"),
    Fault(6.0, "r1", "recovered"),
    Fault(7.0, "r0", "lost"),
    Fault(9.0, "r0", "recovered"),
)


@pytest.mark.parametrize("ahead", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("bootstrap", [False, True], ids=["nixl", "bootstrap"])
@pytest.mark.parametrize("faults", [(), SPLIT_FAULTS], ids=["calm", "faults"])
@pytest.mark.parametrize("scheduler", ["conserve", "ampd", "collocated", "disaggregated"])
def test_equal_in_two_legs(
    scheduler: str, faults: tuple[Fault, ...], bootstrap: bool, ahead: bool
) -> None:
    """Prompts computed on one replica and answered on another, KV transfers and all."""
    legs = 0
    for seed in range(2 if bootstrap or not ahead else 4):
        sessions, cluster = workload(seed), split_cluster()
        settings = SimSettings(sampling_interval_s=1.0, faults=faults, context_limit=LIMIT)
        engine = EngineParams(async_scheduling=ahead)
        rest: dict[str, Any] = {"cluster": cluster, "engine": engine}
        sim = play(sessions, scheduler, settings, live=False, **rest)
        live = play(sessions, scheduler, settings, live=True, bootstrap=bootstrap, **rest)
        assert live.decisions == sim.decisions
        assert [_seen(t) for t in live.turns] == [_seen(t) for t in sim.turns]
        assert live.sessions == sim.sessions
        assert live.counters == sim.counters
        legs += sum(turn.prefill_replica is not None for turn in sim.turns)
    assert (legs > 0) == (scheduler != "collocated")


@pytest.mark.parametrize("scheduler", ["round-robin", "tao"])
def test_equal_while_a_replica_is_slow(scheduler: str) -> None:
    name = small_cluster().replicas[0].id
    faults = (Fault(1.0, name, "slow", 3.0), Fault(5.0, name, "normal"))
    settings = SimSettings(sampling_interval_s=1.0, faults=faults, context_limit=LIMIT)
    calm = SimSettings(sampling_interval_s=1.0, context_limit=LIMIT)
    sim = play(workload(2), scheduler, settings, live=False)
    live = play(workload(2), scheduler, settings, live=True)
    assert live.decisions == sim.decisions
    assert [_seen(t) for t in live.turns] == [_seen(t) for t in sim.turns]
    assert sim.turns != play(workload(2), scheduler, calm, live=False).turns


def _seen(turn: TurnRecord) -> TurnRecord:
    """What a client of a gateway can see of a turn."""
    return replace(turn, longest_gap=None, kv_sent=None, kv_received=None)


@pytest.mark.parametrize("scheduler", ["round-robin", "tao", "conserve", "disaggregated"])
def test_in_real_time_over_http(scheduler: str) -> None:
    """The same cell over real HTTP, ten times as fast: all turns are served, with exact counts.

    How far its times are from the simulator's is a matter of this machine and not asserted.
    """
    sessions = workload(1, 8)
    legs = scheduler in ("conserve", "disaggregated")
    cluster = split_cluster() if legs else small_cluster()
    sim = play(sessions, scheduler, SimSettings(context_limit=LIMIT), live=False, cluster=cluster)
    records = Records()
    outcome = run_emulated(
        sessions,
        workers=5,
        scheduler=registry.create(scheduler),
        cluster=cluster,
        settings=SimSettings(context_limit=LIMIT, sampling_interval_s=1.0),
        engine=EngineParams(),
        recorder=records,
        time_scale=10.0,
        target=scheduler,
    )
    assert {t.status for t in records.turns} == {"ok"}
    counts = {(t.session, t.turn): (t.prompt_tokens, t.output_tokens) for t in sim.turns}
    assert {
        (t.session, t.turn): (t.prompt_tokens, t.output_tokens) for t in records.turns
    } == counts
    assert sorted(s.session for s in records.sessions) == sorted(s.id for s in sessions)
    for turn in records.turns:
        assert turn.dispatched is not None
        assert turn.first_token is not None
        assert turn.arrived <= turn.dispatched <= turn.first_token <= turn.finished
        assert (turn.prefilled is not None) == (turn.prefill_replica is not None)
    assert any(turn.prefill_replica is not None for turn in records.turns) == legs
    assert (outcome.counters["kv.transfers"] > 0) == legs
    assert outcome.counters["engine.decode_tokens"] > 0
    assert records.replicas
