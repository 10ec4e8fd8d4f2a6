"""Where engine time went, by phase, and the energy that follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.capacity import ReplicaPlan
from harness.sim.energy import PhaseSeconds, joules
from harness.sim.engine import Engine
from harness.sim.engine_types import StepTime
from harness.sim.slowdown import VaryingSteps

_PS_PER_S = 10**12
_NS_PER_S = 10**9

ENERGY_SOURCE = "power model with assumed draws by phase"


class MeteredSteps(VaryingSteps):
    """Step times that remember how long steps with a prefill chunk took.

    An engine asks for the time of such a step once, when it begins it.
    """

    __slots__ = ("prefill_ps",)

    def __init__(self, inner: StepTime) -> None:
        super().__init__(inner)
        self.prefill_ps = 0

    def mixed_ps(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> int:
        spent = super().mixed_ps(chunks, decodes, context_sum)
        self.prefill_ps += spent
        return spent


def phase_seconds(
    replica: ReplicaPlan, engine: Engine, meter: MeteredSteps, makespan_ns: int
) -> PhaseSeconds:
    """How a replica spent the run; idle is what neither phase took."""
    busy = engine.state().busy_ps / _PS_PER_S
    prefill = min(meter.prefill_ps / _PS_PER_S, busy)
    return PhaseSeconds(
        gpu=replica.gpu,
        gpus=replica.gpus,
        power_cap_w=replica.power_cap_w,
        prefill=prefill,
        decode=busy - prefill,
        idle=max(0.0, makespan_ns / _NS_PER_S - busy),
    )


def energy_facts(
    replicas: Sequence[ReplicaPlan],
    engines: Mapping[str, Engine],
    meters: Mapping[str, MeteredSteps],
    makespan_ns: int,
) -> dict[str, Any]:
    """Joules of all replicas with the band that assumed draws leave, and the seconds behind them.

    `phase_seconds` is {replica: {prefill, decode, idle}}, seconds of the replica as a whole.
    """
    phases = {r.id: phase_seconds(r, engines[r.id], meters[r.id], makespan_ns) for r in replicas}
    if makespan_ns <= 0:
        return {}
    energy = joules(list(phases.values()))
    return {
        "energy_j": energy.value,
        "energy_low_j": energy.low,
        "energy_high_j": energy.high,
        "energy_source": ENERGY_SOURCE,
        "phase_seconds": {
            name: {"prefill": p.prefill, "decode": p.decode, "idle": p.idle}
            for name, p in phases.items()
        },
    }
