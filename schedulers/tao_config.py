"""TAO's settings. Six choices that the paper's summary leaves open are marked OPEN CHOICE; they are
logged with every result like all settings, and `scripts/tao_solver_study.py` and a sensitivity
sweep show what they change."""

from __future__ import annotations

from dataclasses import dataclass

from schedulers.readiness import ReadinessConfig
from schedulers.tao_plan import PlanSettings

_AT_LEAST_ONE = (
    "credit_quantum_tokens",
    "quantum_min_tokens",
    "quanta_max",
    "max_states",
    "milp_max_nodes",
    "max_candidates",
)
_POSITIVE = ("tick_s", "plan_budget_ms", "lost_plan_s", "forced_after_s", "milp_time_limit_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaoConfig(ReadinessConfig):
    """TAO: value triplet, planner, pausing, limits; the readiness predictor's settings too.

    The range R of the margin (OPEN CHOICE) is among the predictor's: `history_window`.
    """

    # The value triplet.
    use_cache: bool = True
    """Count cache credit. False: the ablation without it."""
    cache_half_life_s: float = 10.0
    """Cache evidence halves in this time. Source: TAO. 0: no decay, the ablation."""
    credit_quantum_tokens: int = 4096
    """OPEN CHOICE. Decayed evidence counts in whole multiples of this. With exact credits two
    sessions with evidence never tie, and readiness would decide nothing among them, yet the paper
    shows that it matters. By our step-time tables 4,096 tokens are 0.23 to 0.34 s of prefill for
    Qwen3-32B on 2xH100: differences worth well under the 1 s horizon of readiness tie."""
    use_readiness: bool = True
    """Count readiness. False: the ablation without it."""
    footprint_sign: int = 1
    """OPEN CHOICE. 1: larger contexts first on ties, filling capacity; -1: smaller first (then a
    session with neither credit nor readiness is not worth its place). The source says that the
    footprint breaks ties, not in which direction."""

    # The planner.
    planner: str = "exact"
    """`exact`: the dynamic program; `short-first`: ThunderAgent's plan at every opportunity."""
    quantum_tokens: int = 0
    """OPEN CHOICE. Admission quantum in tokens; 0: the finest that `quantum_min_tokens` and
    `quanta_max` allow, from the room in play. The source says that capacity is counted in quanta,
    not how large they are."""
    quantum_min_tokens: int = 16
    """With `quantum_tokens` 0: never finer than this. Our choice: a KV block."""
    quanta_max: int = 8192
    """With `quantum_tokens` 0: no more quanta than this on all replicas in play together. Our
    choice: it bounds the solver's tables."""
    max_states: int = 300_000
    """The search for the optimum is cut off after so many states, and the plan counted as not
    proven. Our choice: about a tenth of a second."""
    solver: str = "dynamic"
    """`dynamic`: the dynamic program alone; `dynamic+milp`: what it leaves unproven goes to
    HiGHS (extra `solver`), for 16 replicas and more."""
    milp_time_limit_s: float = 10.0
    """Limit of each of HiGHS's three programs. Cut off by time, plans depend on the machine. Our
    choice."""
    milp_max_nodes: int = 2000
    """Limit of each of HiGHS's search trees. Our choice."""
    max_candidates: int = 256
    """Only so many are planned for at once, in queue order. Our choice."""
    fill_rounding: bool = True
    """Candidates that fit in what rounding to quanta left over are added. Our choice."""
    spread_ties: bool = True
    """Sessions that are worth the same on several replicas go where most room is; False: to the
    first, by order of configuration. Our choice: the paper does not say, and the first would get
    every new session until it is full."""
    min_replan_ms: float = 100.0
    """Opportunities that come faster than this are taken together. Our choice."""
    plan_budget_ms: float = 50.0
    """A plan that takes longer is dropped and the short-first plan applied. Our choice (that
    there is a budget and a fallback is TAO's)."""
    lost_plan_s: float = 10.0
    """A plan that has not come after this never will: the planner may be asked again. Our
    choice."""
    discard: str = "strict"
    """OPEN CHOICE. `strict`: a plan is discarded if any session that it selects has changed
    since the snapshot; `skip`: that session alone is left out."""
    direct: bool = True
    """A session that arrives when no other waits, and fits, is placed at once where the same
    objective puts it, without the planner's latency. Our choice."""

    # Capacity and pausing.
    tick_s: float = 5.0
    """Time between two checks of capacity. As ThunderAgent's scheduler_interval."""
    pause_order: str = "triplet"
    """OPEN CHOICE. Sessions lose their places by ascending value on their own replica
    (`triplet`), or smallest first (`thunder`). That TAO's order differs from ThunderAgent's is
    in the paper's ablations; which it is, is not."""
    acting_weight: float = 1.0
    """Share of an acting session's tokens that counts as used. As ThunderAgent's."""
    acting_half_life_s: float = 0.0
    """Acting tokens halve in this time when room for admission is computed (never for pausing);
    0: they do not. As ThunderAgent's default; its paper has 1 s."""
    idle_ttl_s: float = 600.0
    """A session that acts for longer gives its place away, and is no candidate until its next
    turn; 0: never. Our choice, for agents that end without saying so."""
    forced_after_s: float = 1800.0
    """A turn that waited this long is let in whatever the room. As ThunderAgent."""

    def __post_init__(self) -> None:
        # dataclass(slots=True) makes a new class, so a bare super() would not find its base.
        ReadinessConfig.__post_init__(self)
        _one_of("planner", self.planner, ("exact", "short-first"))
        _one_of("solver", self.solver, ("dynamic", "dynamic+milp"))
        _one_of("discard", self.discard, ("strict", "skip"))
        _one_of("pause_order", self.pause_order, ("triplet", "thunder"))
        if self.footprint_sign not in (1, -1):
            raise ValueError(f"footprint_sign is 1 or -1, not {self.footprint_sign}")
        if self.footprint_sign == -1 and not self.use_readiness:
            raise ValueError("footprint_sign -1 without readiness would admit nobody without cache")
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")
        for name in ("cache_half_life_s", "quantum_tokens", "min_replan_ms", "idle_ttl_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")

    def plan_settings(self) -> PlanSettings:
        return PlanSettings(
            quantum_tokens=self.quantum_tokens,
            quantum_min_tokens=self.quantum_min_tokens,
            quanta_max=self.quanta_max,
            max_states=self.max_states,
            milp=self.solver == "dynamic+milp",
            milp_time_limit_s=self.milp_time_limit_s,
            milp_max_nodes=self.milp_max_nodes,
            fill=self.fill_rounding,
            spread=self.spread_ties,
        )


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is one of {', '.join(allowed)}; not `{value}`")
