"""TAO with one part taken away, as in the paper's ablation table, and with the true tool ends."""

from __future__ import annotations

from dataclasses import dataclass

from schedulers.base import SchedulerInfo
from schedulers.tao import Tao
from schedulers.tao_config import TaoConfig


def _info(what: str) -> SchedulerInfo:
    return SchedulerInfo(
        family="admission",
        observes=Tao.info.observes,
        holds=True,
        fidelity=Tao.info.fidelity,
        reference=f"TAO {what}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _NoCacheConfig(TaoConfig):
    use_cache: bool = False
    """The ablation."""


class TaoNoCache(Tao):
    name = "tao-no-cache"
    info = _info("without cache credit (ablation)")
    Config = _NoCacheConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class _NoDecayConfig(TaoConfig):
    cache_half_life_s: float = 0.0
    """The ablation: cached tokens count in full however old."""


class TaoNoDecay(Tao):
    name = "tao-no-decay"
    info = _info("with cache credit that does not decay (ablation)")
    Config = _NoDecayConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class _NoReadinessConfig(TaoConfig):
    use_readiness: bool = False
    """The ablation."""


class TaoNoReadiness(Tao):
    name = "tao-no-readiness"
    info = _info("without readiness (ablation)")
    Config = _NoReadinessConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class _ThunderOrderConfig(TaoConfig):
    pause_order: str = "thunder"
    """The ablation: fewest tokens first, as ThunderAgent."""


class TaoThunderOrder(Tao):
    name = "tao-thunder-order"
    info = _info("with ThunderAgent's order of pausing (ablation)")
    Config = _ThunderOrderConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class _BfdConfig(TaoConfig):
    planner: str = "short-first"
    """The ablation: ThunderAgent's plan instead of the dynamic program."""


class TaoBfd(Tao):
    name = "tao-bfd"
    info = _info("with ThunderAgent's short-first plan instead of the exact one (ablation)")
    Config = _BfdConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class _OracleConfig(TaoConfig):
    fresh_s: float = float("inf")
    """The truth does not grow stale."""


class OracleTools(Tao):
    """A bound, not a deployment: TAO told when tools really end.

    A driver that sees `wants_true_tool_ends` sends a ToolHint with the true remaining seconds
    right after each ToolStarted. The counter `tools_without_truth` says how often it did not.
    """

    name = "oracle-tools"
    info = _info("told the true end of every tool call (a bound)")
    Config = _OracleConfig
    wants_true_tool_ends = True

    def counters(self) -> dict[str, float]:
        counts = super().counters()
        called = counts.get("predicted_calls_tao_all", 0.0)
        told = counts.get("predicted_calls_tao_progress", 0.0)
        return {**counts, "tools_without_truth": called - told}
