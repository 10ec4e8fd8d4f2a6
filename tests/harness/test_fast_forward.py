"""Whole cluster cells with fast-forward on and off: every record is the same."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.capacity import resolve_cluster
from harness.sim.cpu_offload import CpuTier
from harness.sim.data_parallel import DataParallelStepTime
from harness.sim.engine_types import EngineParams, StepTime
from harness.sim.faults import Fault
from harness.sim.kv_store import StoreSpec
from harness.sim.links import LinkSpec
from harness.sim.settings import SimSettings
from harness.sim.step_time import step_time_for
from schedulers.registry import create
from schedulers.views import Role
from tests.harness.engine_workloads import CoarseTime
from tests.harness.simulated import FlatStep, Played, play
from workloads.model import Segment, Session, ToolCall, TurnSpec

SPLIT = ("conserve", "ampd", "disaggregated")
MIXED = ("round-robin", "smetric", "thunderagent", "tao", "cache-aware", "collocated")
LINK = LinkSpec(10, efficiency=0.5, latency_us=700)
STORE = StoreSpec(2_000, LINK, chunk_tokens=16, lookup_us=1300)


@cache
def two_ranks() -> StepTime:
    cluster = resolve_cluster("qwen3-30b-a3b", "1x1xrtx-pro-6000")
    return DataParallelStepTime(
        step_time_for(cluster.model, cluster.replicas[0], expert_ranks=2), 2
    )


@cache
def tables() -> StepTime:
    cluster = resolve_cluster("qwen3-32b", "4x2xh100")
    return step_time_for(cluster.model, cluster.replicas[0])


@dataclass(frozen=True)
class Case:
    """One cell. Everything about it follows from its seed."""

    seed: int
    legs: bool
    scheduler: str
    ahead: bool
    beyond: str
    """KV beyond the replicas: `none`, `store` or `offload`."""

    def play(self, fast: bool) -> Played:
        rng = random.Random(self.seed)
        roles: list[Role] = ["prefill", "decode", "decode"] if self.legs else ["mixed"] * 2
        names = [f"r{i}" for i in range(len(roles))]
        params = EngineParams(
            null_blocks=0,
            block_size=16,
            max_num_batched_tokens=rng.choice((64, 300, 8192)),
            max_num_seqs=rng.choice((2, 64)),
            watermark=rng.choice((0.0, 0.1)),
            reserve_full_input=rng.random() < 0.7,
            api_request_ps=rng.choice((0, 0, 1_234_567_891)),
            output_delay_ps=rng.choice((0, 0, 777_777_777, 40_000_000_001)),
            async_scheduling=self.ahead,
            fast_forward=fast,
        )
        step = rng.choice((FlatStep(), CoarseTime(49_999_993, 900), tables(), two_ranks()))
        what = SimSettings(
            sampling_interval_s=rng.choice((0.3, 1.0, 5.0)),
            faults=_faults(rng, names),
            kv_store=STORE if self.beyond == "store" else None,
            agent_retries=100,
            retry_delay_s=0.1,
        )
        tiers = {name: CpuTier(1600, 16, 1_000_000, LINK) for name in names}
        sessions = _sessions(rng)
        longest = max(t.prompt_tokens + t.output_tokens for s in sessions for t in s.turns)
        return play(
            sessions,
            create(self.scheduler),
            workers=rng.randint(1, 8),
            replicas=len(roles),
            blocks=-(-longest // 16) + rng.choice((0, 3, 10, 60)),
            settings=what,
            params=params,
            roles=roles if self.legs else (),
            tiers=tiers if self.beyond == "offload" else None,
            step_time=step,
        )

    def check(self) -> None:
        fast, slow = self.play(True), self.play(False)
        assert fast.records.turns == slow.records.turns
        assert fast.records.decisions == slow.records.decisions
        assert fast.records.sessions == slow.records.sessions
        assert fast.records.replicas == slow.records.replicas
        assert fast.makespan == slow.makespan
        assert fast.driver.service_counters() == slow.driver.service_counters()


def _faults(rng: random.Random, names: list[str]) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    for _ in range(rng.choice((0, 0, 1, 3))):
        at, name = rng.uniform(0, 5), rng.choice(names)
        begin, end = rng.choice(
            (("lost", "recovered"), ("slow", "normal"), ("metrics-stop", "metrics-resume"))
        )
        faults.append(Fault(at, name, begin, 2.5))
        faults.append(Fault(at + rng.uniform(0.05, 3), name, end))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _sessions(rng: random.Random) -> list[Session]:
    made: list[Session] = []
    for number in range(rng.randint(1, 10)):
        turns: list[TurnSpec] = []
        for index in range(rng.randint(1, 4)):
            whole = turns[-1].prompt_tokens + turns[-1].output_tokens if turns else 0
            tools = (ToolCall("bash", rng.choice((0.0, 0.2, 1.0)), None, False),)
            turns.append(
                TurnSpec(
                    new_tokens=rng.choice((5, 40, 100)),
                    output_tokens=rng.choice((1, 2, 8, 30, 70)),
                    kept_turn=index - 1 if index else None,
                    kept_tokens=rng.choice((whole, whole, whole // 2)),
                    shared=() if index else (Segment("tools", 48, 200),),
                    tools=tools[: rng.randint(0, 1)],
                )
            )
        deadline = rng.choice((None, None, None, 2.0))
        session = Session(f"s{number}", tuple(turns), "test", "generated")
        made.append(replace(session, deadline_s=deadline))
    return made


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 2**32),
    st.booleans(),
    st.integers(0, 5),
    st.booleans(),
    st.sampled_from(("none", "none", "store", "offload")),
)
def test_fast_forward_changes_nothing(
    seed: int, legs: bool, scheduler: int, ahead: bool, beyond: str
) -> None:
    names = SPLIT if legs else MIXED
    Case(seed, legs, names[scheduler % len(names)], ahead, beyond).check()
