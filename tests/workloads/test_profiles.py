"""Generated sessions: published quantiles, determinism, settings, stated sources."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from agentsched import UsageError
from workloads.catalog import load_workload
from workloads.model import Session
from workloads.profiles.bash_tools import FAST, SLOW
from workloads.profiles.generate import PROFILES, context_sensitivity, generate, parameters
from workloads.profiles.laws import QuantileLaw
from workloads.profiles.swe_bench import SweBenchMiniShort
from workloads.stats import (
    StatRow,
    TraceStats,
    distances,
    peak_context,
    share_over,
    trace_stats,
)

MANY = 1000
"""Sessions a profile: more than 20,000 turns of each."""


@cache
def _sessions(name: str, variant: str = "") -> tuple[Session, ...]:
    chosen = {"tools": variant} if variant else {}
    return tuple(generate(name, sessions=MANY, seed=11, settings=chosen))


@cache
def _stats(name: str, variant: str = "") -> TraceStats:
    stats = trace_stats(_sessions(name, variant))
    assert stats.turns > 20_000
    return stats


# Published p50 and p90, and how far the fitted law may be from them. AgentCgroup's growth and
# outputs are fitted by a lognormal that misses the published p90 by up to 12 %; first prompts were
# published for 20 sessions only.
SWE_QUANTILES = [
    ("turns a session", 45, 92, 0.12),
    ("first prompt", 1400, 2800, 0.20),
    ("new tokens a later turn", 409, 1470, 0.13),
    ("output a turn", 145, 601, 0.15),
    ("tool call", 6.6, 10.8, 0.02),
]


@pytest.mark.parametrize(("quantity", "p50", "p90", "tolerance"), SWE_QUANTILES)
def test_swe_bench_mini_has_the_published_quantiles(
    quantity: str, p50: float, p90: float, tolerance: float
) -> None:
    row = next(r for r in _stats("swe-bench-mini").rows if r.quantity == quantity)
    assert row.p50 == pytest.approx(p50, rel=tolerance)
    assert row.p90 == pytest.approx(p90, rel=tolerance)


def test_fast_tools_have_the_published_quantiles() -> None:
    row = next(r for r in _stats("swe-bench-mini", "fast").rows if r.quantity == "tool call")
    # AgentCgroup, Haiku: p50 1.06, p90 3.4; p99 121 s, which the environment stops at 60 s.
    assert row.p50 == pytest.approx(1.06, rel=0.02)
    assert row.p90 == pytest.approx(3.4, rel=0.02)
    assert row.p99 == row.maximum == 60.0


def test_slow_law_has_the_published_mean() -> None:
    # Not put in: the published mean of these calls is 5.9 s, their p25 0.05 and p99 26 s.
    values = SLOW.at((np.arange(100_000) + 0.5) / 100_000)
    assert values.mean() == pytest.approx(5.9, rel=0.1)
    assert np.quantile(values, [0.25, 0.99]) == pytest.approx([0.05, 26.0], rel=0.01)
    assert float(FAST.at(np.array([0.99]))[0]) == pytest.approx(121.0)


def test_automationbench_lies_in_the_published_ranges() -> None:
    sessions = generate("automationbench", sessions=3000, seed=11)
    rows = {row.quantity: row for row in trace_stats(sessions).rows}
    totals = [sum(t.prompt_tokens for t in s.turns) for s in sessions]
    means = [total / len(s.turns) for total, s in zip(totals, sessions, strict=True)]
    calls = [sum(len(t.tools) for t in s.turns) for s in sessions]
    outputs = [np.mean([t.output_tokens for t in s.turns]) for s in sessions]
    # Ranges over the four models of the runs. The profile is the one with the longest outputs and
    # contexts, at the ranges' upper end, and 3,000 sessions leave 3 % of chance in a total.
    ranges: list[tuple[float, float, float]] = [
        (rows["turns a session"].p50, 16, 20),
        (rows["turns a session"].p90, 39, 50),
        (float(np.quantile(outputs, 0.5)), 307, 361),
        (float(np.mean(outputs)), 340, 448),
        (float(np.quantile(totals, 0.5)), 198_000, 259_000),
        (float(np.quantile(totals, 0.9)), 680_000, 1_220_000),
        (float(np.quantile(means, 0.5)), 10_700, 14_200),
        (float(np.quantile(means, 0.9)), 19_500, 28_300),
        (float(np.mean(calls)), 37, 44),
        (rows["tool call"].mean, 0.008, 0.009),
    ]
    for value, low, high in ranges:
        assert 0.9 * low <= value <= 1.1 * high
    assert sum(calls) / sum(len(s.turns) - 1 for s in sessions) == pytest.approx(1.86, rel=0.02)


def _row(name: str, quantity: str) -> StatRow:
    return next(row for row in _stats(name).rows if row.quantity == quantity)


# (profile, quantity, published p50, p90, tolerance)
OTHER_QUANTILES = [
    # AgentCgroup, Claude Code on SWE-rebench; all tool calls: p50 0.035, p75 6.7, p90 9.3 s.
    ("swe-bench-cc", "turns a session", 45, 92, 0.12),
    ("swe-bench-cc", "first prompt", 13_400, 13_745, 0.01),
    ("swe-bench-cc", "new tokens a later turn", 409, 1470, 0.13),
    ("swe-bench-cc", "output a turn", 145, 601, 0.15),
    ("swe-bench-cc", "tool call", 0.035, 9.3, 0.20),
    ("swe-bench-cc", "peak context", 52_900, 83_000, 0.35),
    # Terminal-Bench 2.0 trials of terminus-2; the rest of it is known per trial, below.
    ("tb2-terminus2", "turns a session", 17, 57, 0.16),
    # Weka: as published, and waits as read from the traces here. Its lognormals miss the recorded
    # quantiles by up to 20 % (tool calls, recorded in whole seconds, by a third). First prompts
    # spread so widely that 1,000 sessions leave 10 % of chance.
    ("cc-interactive", "turns a session", 44, 146, 0.25),
    ("cc-interactive", "first prompt", 23_300, 259_000, 0.25),
    ("cc-interactive", "output a turn", 217, 879, 0.22),
    ("cc-interactive", "tool call", 9, 69, 0.36),
    ("cc-interactive", "wait after a turn", 121.5, 1340, 0.20),
]


@pytest.mark.parametrize(("name", "quantity", "p50", "p90", "tolerance"), OTHER_QUANTILES)
def test_other_profiles_have_the_published_quantiles(
    name: str, quantity: str, p50: float, p90: float, tolerance: float
) -> None:
    row = _row(name, quantity)
    assert row.p50 == pytest.approx(p50, rel=tolerance)
    assert row.p90 == pytest.approx(p90, rel=tolerance)


def test_terminus_trials_have_the_published_means() -> None:
    sessions = [s for s in _sessions("tb2-terminus2") if len(s.turns) > 1]
    prompts = [np.mean([t.prompt_tokens for t in s.turns]) for s in sessions]
    outputs = [np.mean([t.output_tokens for t in s.turns]) for s in sessions]
    gaps = [np.mean([t.tool_seconds for t in s.turns[:-1]]) for s in sessions]
    # Means of a trial over its requests: p50 and p90 over trials.
    assert np.quantile(prompts, [0.5, 0.9]) == pytest.approx([9900, 27_000], rel=0.12)
    # The lognormal of the source has p90 3,320.
    assert np.quantile(outputs, [0.5, 0.9]) == pytest.approx([784, 4050], rel=0.32)
    assert np.quantile(gaps, [0.5, 0.9]) == pytest.approx([6.6, 30], rel=0.15)


def test_terminus_states_what_it_waits_for() -> None:
    calls = [c for s in _sessions("tb2-terminus2")[:100] for t in s.turns for c in t.tools]
    for call in calls:
        assert call.hint_s is not None
        assert 0.1 <= call.hint_s <= 60.0
        if 1.2 < call.seconds < 60.0:
            assert call.seconds - call.hint_s == pytest.approx(1.0, abs=0.06)


def test_terminal_bench_sets_up_first() -> None:
    setups = [s.setup_s for s in _sessions("tb2-terminus2")]
    assert np.quantile(setups, [0.5, 0.9]) == pytest.approx([3.0, 12.0], rel=0.12)
    assert min(s.setup_s for s in _sessions("tb2-claude-code")) > 5


def test_terminal_bench_has_its_deadlines() -> None:
    deadlines = [s.deadline_s for s in _sessions("tb2-terminus2")]
    # 48 of the 83 tasks: 58 %.
    assert deadlines.count(900.0) / len(deadlines) == pytest.approx(48 / 83, abs=0.05)
    free = generate("tb2-claude-code", sessions=3, settings={"deadlines": False})
    assert [s.deadline_s for s in free] == [None] * 3


def test_interactive_sessions_reuse_and_reset_as_recorded() -> None:
    stats = _stats("cc-interactive")
    assert stats.reuse_share == pytest.approx(0.962, abs=0.015)
    assert stats.compactions / stats.turns == pytest.approx(0.017, abs=0.006)
    recorded = distances(_sessions("cc-interactive"), load_workload("weka-claude-code"))
    found = {d.quantity: d.ks for d in recorded}
    for quantity in ("turns a session", "first prompt", "output a turn", "tool call"):
        assert found[quantity] < 0.15, quantity


def test_bailian_reuse_is_as_published() -> None:
    assert _stats("bailian-agent").reuse_share > 0.80
    stats = trace_stats(generate("bailian-chat", sessions=4000, seed=3))
    assert 0.54 <= stats.reuse_share <= 0.62


def test_short_variant_meets_the_published_bound() -> None:
    # 74 % of sessions below 20,000 tokens is what its growth is solved for.
    sessions = _sessions("swe-bench-mini-short")
    assert share_over(sessions, 20_000) == pytest.approx(0.26, abs=0.04)


def test_short_growth_by_hand() -> None:
    # z(0.74) = 0.64335; turns exp(3.75 + 0.64335 * 0.63) = 63.77; first prompt exp(7.37 + 0.045) =
    # 1,660.7; reply exp(4.61 + 0.0882) = 109.75. (20,000 - 1,660.7 - 63.77 * 109.75) / 62.77 =
    # 180.67 tokens; ln 180.67 - 1.07^2 / 2 = 5.19666 - 0.57245 = 4.6242.
    assert SweBenchMiniShort().observation_mu() == pytest.approx(4.6242, abs=2e-4)
    assert SweBenchMiniShort(growth_mu=5.0).observation_mu() == 5.0
    with pytest.raises(UsageError, match="no room"):
        SweBenchMiniShort(bound_tokens=5000).observation_mu()


def test_sensitivity_to_the_context_limit() -> None:
    shares = context_sensitivity(40_960, sessions=600)
    assert shares["swe-bench-mini"] == pytest.approx(0.5, abs=0.06)
    assert shares["swe-bench-mini-short"] < 0.08


@pytest.mark.parametrize("name", PROFILES)
def test_a_session_depends_on_seed_and_number_only(name: str) -> None:
    few, more = generate(name, sessions=3, seed=5), generate(name, sessions=8, seed=5)
    assert more[:3] == few
    other = generate(name, sessions=3, seed=6)
    assert all(a.turns != b.turns for a, b in zip(few, other, strict=True))
    assert len({s.id for s in [*more, *other]}) == 11


@pytest.mark.parametrize("name", PROFILES)
def test_every_parameter_names_its_source(name: str) -> None:
    found = parameters(name)
    assert found
    for parameter in found:
        assert len(parameter.source) > 10, parameter.name
        sourced = any(mark in parameter.source for mark in SOURCES)
        assert sourced, f"{parameter.name}: {parameter.source}"


SOURCES = (
    "ssumed",
    "AgentCgroup",
    "LMCache",
    "mini-swe-agent",
    "AutomationBench",
    "those runs",
    "that fit",
    "As ",
    "Weka",
    "Terminal-Bench",
    "TraceLab",
    "Mooncake",
    "Azure",
    "solved by",
    "arXiv",
    "that shortest first prompt",
    "those trials",
)


@pytest.mark.parametrize("name", PROFILES)
def test_sessions_are_sound(name: str) -> None:
    for session in generate(name, sessions=40, seed=2):
        assert session.workload == name or name == "mixed"
        assert session.origin == "generated"
        assert peak_context(session) >= session.turns[0].prompt_tokens
        assert session.turns[-1].tools == ()
        for turn in session.turns:
            assert turn.new_tokens >= 1
            assert turn.output_tokens >= 1
            assert all(call.seconds >= 0 for call in turn.tools)


def test_hints_state_the_duration() -> None:
    hinted = [
        call
        for session in generate("swe-bench-mini", sessions=50, seed=0, settings={"hint_share": 0.2})
        for turn in session.turns
        for call in turn.tools
        if call.hint_s is not None
    ]
    assert hinted
    assert all(call.name == "bash:sleep" for call in hinted)
    assert all(0 <= call.seconds - (call.hint_s or 0) < 1 for call in hinted)


def test_names_tell_short_commands_from_long_ones() -> None:
    calls = [c for s in _sessions("swe-bench-mini")[:200] for t in s.turns for c in t.tools]
    seconds = {
        name: np.median([c.seconds for c in calls if c.name == name])
        for name in ("bash:cat", "bash:ls", "bash:pytest", "bash:python")
    }
    assert max(seconds["bash:cat"], seconds["bash:ls"]) < 0.5
    assert min(seconds["bash:pytest"], seconds["bash:python"]) > 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"turn_mu": 1.0}, "no setting"),
        ({"turns_mu": "long"}, "cannot be"),
        ({"turns_cap": 2.5}, "cannot be"),
        ({"turns_cap": True}, "cannot be"),
        ({"turns_mu": float("nan")}, "cannot be"),
        ({"tool_cap_s": -1.0}, "negative"),
        ({"tools": "medium"}, "tool variant"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        generate("swe-bench-mini", sessions=1, settings=settings)


def test_settings_change_what_they_say() -> None:
    chosen: dict[str, object] = {"turns_cap": 3, "turns_mu": 4, "template_tokens": 0}
    sessions = generate("swe-bench-mini", sessions=20, settings=chosen)
    assert max(len(s.turns) for s in sessions) == 3
    assert all(s.turns[0].shared == () for s in sessions)


def test_unknown_profile_and_bad_numbers() -> None:
    with pytest.raises(UsageError, match="unknown profile"):
        generate("swe", sessions=1)
    for sessions, seed in ((0, 0), (1, -1)):
        with pytest.raises(UsageError):
            generate("automationbench", sessions=sessions, seed=seed)


def test_quantile_law_by_hand() -> None:
    law = QuantileLaw(((0.0, 1.0), (0.5, 100.0), (1.0, 200.0)))
    # Half way in probability is half way in logarithm: sqrt(1 * 100) = 10.
    assert law.at(np.array([0.0, 0.25, 0.5, 1.0])) == pytest.approx([1.0, 10.0, 100.0, 200.0])


def test_mixed_sessions_are_those_of_its_parts_in_their_shares() -> None:
    found = generate("mixed", sessions=300, seed=3, settings={"office_weight": 0.0})
    kinds = [session.workload for session in found]
    assert set(kinds) == {"swe-bench-mini-short", "tb2-claude-code"}
    # 300 draws at one half: 150 in the mean, with a deviation of sqrt(75).
    assert abs(kinds.count("tb2-claude-code") - 150) < 4 * 75**0.5
