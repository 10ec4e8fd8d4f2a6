"""TAO's readiness predictor against values worked out by hand."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.readiness import History, ReadinessConfig, ReadinessPredictor, margin
from schedulers.types import NS, ToolSignal

BASH = ToolSignal("bash")


def predictor_with(
    samples: dict[str, list[float]], config: ReadinessConfig | None = None
) -> ReadinessPredictor:
    """A predictor that has seen these durations, in seconds, all completed at time 0."""
    predictor = ReadinessPredictor(config)
    for name, durations in samples.items():
        for seconds in durations:
            predictor.started("warm-up", [ToolSignal(name)], -round(seconds * NS))
            predictor.completed("warm-up", 0)
    return predictor


def seconds(value: int) -> float:
    return value / NS


def test_margin_by_hand() -> None:
    history = History(256)
    for duration in (1, 2, 3):
        history.add(duration * NS, 0)
    # n = 3, mean 2, s^2 = 1, R = 2, ln(2/0.2) = 2.302585.
    # sqrt(2 * 1 * 2.302585 / 3) = 1.238974; 7 * 2 * 2.302585 / (3 * 2) = 5.372699.
    assert margin(history, 0.2) / NS == pytest.approx(1.238974 + 5.372699, abs=1e-5)


def test_margin_is_added_to_the_mean() -> None:
    predictor = predictor_with({"bash": [10.0, 10.1, 10.2]})
    prediction = predictor.started("s", [BASH], 0)
    # s^2 = 0.01, R = 0.2: sqrt(0.02 * 2.302585 / 3) = 0.1238974;
    # 7 * 0.2 * 2.302585 / 6 = 0.5372699; 10.1 + 0.6611673.
    assert prediction.source == "tool"
    assert seconds(prediction.duration) == pytest.approx(10.7611673, abs=1e-6)


def test_margin_is_capped_by_the_mean_and_by_seconds() -> None:
    # Samples 1, 2, 3: margin 6.61 > mean 2, so 2 + 2.
    assert seconds(predictor_with({"bash": [1, 2, 3]}).started("s", [BASH], 0).duration) == 4
    # Samples 10, 20: margin > 5, mean 15: 15 + 5.
    assert seconds(predictor_with({"bash": [10, 20]}).started("s", [BASH], 0).duration) == 20
    free = predictor_with(
        {"bash": [1, 2, 3]}, ReadinessConfig(margin_cap_s=1e9, margin_cap_of_mean=1e9)
    )
    assert seconds(free.started("s", [BASH], 0).duration) == pytest.approx(8.611673, abs=1e-5)


def test_sources_in_order() -> None:
    fresh = ReadinessPredictor()
    assert fresh.started("s", [BASH], 0) == ("default", 5 * NS, 0)
    one = predictor_with({"grep": [3]})  # one sample is no history: the margin needs two
    assert one.started("s", [BASH], 0).source == "default"
    others = predictor_with({"grep": [3, 3]})  # equal samples: no variance, no range, no margin
    assert others.started("s", [BASH], 0) == ("global", 3 * NS, 0)
    own = predictor_with({"grep": [3, 3], "bash": [2, 2]})
    assert own.started("s", [BASH], 0) == ("tool", 2 * NS, 0)
    assert own.started("s", [ToolSignal("bash", "sleep 7 && ls")], 0) == ("stated", 7 * NS, 0)
    assert own.started("s", [ToolSignal("bash", hint_s=0.5)], 0) == ("stated", NS // 2, 0)
    own.hint("s", 4.0, now=10 * NS)
    assert own.prediction("s") == ("progress", 14 * NS, 10 * NS)


def test_timeout_limits_history_and_certain_sleep_is_its_floor() -> None:
    predictor = predictor_with({"bash": [20, 20]})
    assert predictor.started("s", [ToolSignal("bash", "timeout 9 make")], 0).duration == 9 * NS
    quick = predictor_with({"bash": [1, 1]})
    command = "sleep 5; timeout 60 make"
    assert quick.started("s", [ToolSignal("bash", command)], 0) == ("tool", 5 * NS, 0)


def test_parallel_calls() -> None:
    predictor = predictor_with({"bash": [2, 2], "grep": [3, 3]})
    both = [ToolSignal("grep"), BASH]
    assert predictor.started("s", both, 0) == ("tool", 3 * NS, 0)  # the longer one
    assert predictor.started("t", [BASH, BASH], 0) == ("tool", 2 * NS, 0)
    one_after_the_other = predictor_with(
        {"bash": [2, 2], "grep": [3, 3]}, ReadinessConfig(parallel_tools="sum")
    )
    assert one_after_the_other.started("s", both, 0).duration == 5 * NS
    # Once the pair itself has history, that counts.
    for _ in range(2):
        predictor.started("s", both, 0)
        predictor.completed("s", 8 * NS)
    assert predictor.started("s", both, 0) == ("tool", 8 * NS, 0)
    sleeps = [ToolSignal("bash", "sleep 2"), ToolSignal("bash", "sleep 6")]
    assert predictor.started("s", sleeps, 0) == ("stated", 6 * NS, 0)
    assert predictor.started("s", [*sleeps, ToolSignal("new")], 0).source == "global"


def test_horizon() -> None:
    predictor = ReadinessPredictor()
    predictor.started("s", [ToolSignal("bash", "sleep 10")], 0)
    assert not predictor.ready("s", 9 * NS - 1)  # 1 s and 1 ns left
    assert predictor.ready("s", 9 * NS)
    assert predictor.ready("s", 10 * NS - 1)
    assert not predictor.ready("unknown", 0)


def test_stale_prediction_is_not_ready_until_renewed() -> None:
    predictor = ReadinessPredictor()
    predictor.started("s", [ToolSignal("bash", "sleep 31.5")], 0)
    assert not predictor.ready("s", 31 * NS)  # made 31 s ago
    predictor.hint("s", 0.5, now=31 * NS)
    assert predictor.ready("s", 31 * NS)
    predictor.started("t", [ToolSignal("bash", "sleep 31")], 0)
    assert predictor.ready("t", 30 * NS)  # exactly 30 s old still counts


def test_new_history_renews_a_prediction_but_time_does_not() -> None:
    predictor = predictor_with({"bash": [100, 100]})
    predictor.started("s", [BASH], 0)
    assert not predictor.ready("s", 99 * NS + NS // 2)  # stale: 99.5 s old
    predictor.started("t", [BASH], 0)
    predictor.completed("t", 90 * NS)
    # Samples 100, 100, 90 s: mean 96.67 s, margin capped at 5 s: 101.67 s, made at 90 s.
    prediction = predictor.prediction("s")
    assert prediction is not None
    assert (prediction.source, prediction.made_at) == ("tool", 90 * NS)
    assert seconds(prediction.duration) == pytest.approx(96.6667 + 5, abs=1e-3)
    assert predictor.ready("s", 101 * NS)
    # Another tool's history does not renew it.
    predictor.started("u", [ToolSignal("grep")], 90 * NS)
    predictor.completed("u", 95 * NS)
    assert predictor.prediction("s") == prediction


def test_default_prediction_moves_to_history_when_there_is_some() -> None:
    predictor = ReadinessPredictor()
    predictor.started("s", [BASH], 0)
    for name in ("t", "u"):
        predictor.started(name, [ToolSignal("grep")], 0)
        predictor.completed(name, 2 * NS)
    assert predictor.prediction("s") == ("global", 2 * NS, 2 * NS)


@pytest.mark.parametrize(
    ("overdue_s", "ready"),
    [
        (0.0, True),  # window 1: 0 to 1
        (0.999, True),
        (1.0, False),  # gap of 1
        (1.999, False),
        (2.0, True),  # window 2: 2 to 3
        (3.0, False),  # gap of 2
        (5.0, True),  # window 3: 5 to 6
        (6.0, False),  # gap of 4
        (10.0, True),  # window 4: 10 to 11, then gaps of 8, 16, 30, 30
        (19.0, True),  # 11 + 8
        (36.0, True),  # 20 + 16
        (66.999, False),
        (67.0, True),  # 37 + 30, not 32
        (98.0, True),  # 68 + 30
    ],
)
def test_probe_windows_of_an_overdue_tool(overdue_s: float, ready: bool) -> None:
    predictor = ReadinessPredictor()
    predictor.started("s", [ToolSignal("bash", "sleep 3")], 0)
    assert predictor.ready("s", round((3 + overdue_s) * NS)) is ready


def test_probe_windows_are_counted() -> None:
    predictor = ReadinessPredictor()
    predictor.started("s", [ToolSignal("bash", "sleep 3")], 0)
    call = predictor.completed("s", round(8.5 * NS))  # 5.5 s overdue: in the third window
    assert call is not None
    assert call.probe_windows == 3
    assert predictor.log.probe_windows == 3


def test_completion_is_logged_with_plain_predictors_beside_it() -> None:
    predictor = predictor_with({"bash": [1, 2, 6]}, ReadinessConfig(margin_cap_s=0.0))
    logged_before = len(list(predictor.log.rows()))
    assert logged_before
    predictor.started("s", [BASH], 0)
    call = predictor.completed("s", 2 * NS)
    assert call is not None
    assert (call.source, call.final, call.actual) == ("tool", 3 * NS, 2 * NS)
    assert (call.mean, call.median) == (3 * NS, 2 * NS)
    assert predictor.completed("s", 3 * NS) is None


def test_accuracy_rows_by_hand() -> None:
    predictor = ReadinessPredictor()
    for name, actual in (("a", 5.25), ("b", 4.0)):  # default 5 s: errors 0.25 and 1.0
        predictor.started(name, [BASH], 0)
        predictor.completed(name, round(actual * NS))
    rows = {(row.predictor, row.source): row for row in predictor.log.rows()}
    tao = rows["tao", "default"]
    assert (tao.calls, tao.mean_abs_error_s, tao.within_half_second) == (2, 0.625, 0.5)
    # Plain mean: 5 s at first, then the only sample, 5.25: errors 0.25 and 1.25.
    assert rows["mean", "default"].mean_abs_error_s == 0.75
    assert rows["median", "all"].calls == 2


def test_forgotten_session_teaches_nothing() -> None:
    predictor = ReadinessPredictor()
    predictor.started("s", [BASH], 0)
    predictor.forget("s")
    assert predictor.completed("s", NS) is None
    assert predictor.started("s", [BASH], 0).source == "default"


def test_final_prediction_sees_history_that_came_meanwhile() -> None:
    predictor = ReadinessPredictor()
    predictor.started("s", [BASH], 0)
    for name in ("t", "u"):
        predictor.started(name, [BASH], 0)
        predictor.completed(name, 2 * NS)
    call = predictor.completed("s", 3 * NS)
    assert call is not None
    assert (call.first, call.final, call.source) == (5 * NS, 2 * NS, "tool")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 10**12), min_size=2, max_size=40), st.integers(2, 10))
def test_window_sums_equal_a_recount(durations: list[int], window: int) -> None:
    history = History(window)
    for duration in durations:
        history.add(duration, 0)
    kept = durations[-window:]
    mean = sum(kept) / len(kept)
    assert history.mean == mean
    assert history.range == max(kept) - min(kept)
    expected = math.fsum((one - mean) ** 2 for one in kept) / (len(kept) - 1)
    assert history.variance == pytest.approx(expected, rel=1e-9, abs=1.0)


def test_generated_durations_predictor_is_within_reach_of_the_plain_mean() -> None:
    """Seeded lognormal tools (generated, not recorded): the margin costs accuracy, boundedly."""
    rng = random.Random(7)
    predictor = ReadinessPredictor()
    now = 0
    for index in range(2000):
        name = ("ls", "pytest", "grep")[index % 3]
        scale = {"ls": 0.1, "pytest": 3.0, "grep": 0.2}[name]
        predictor.started("s", [ToolSignal(name)], now)
        now += round(scale * rng.lognormvariate(0, 0.3) * NS)
        predictor.completed("s", now)
    rows = {(row.predictor, row.source): row for row in predictor.log.rows()}
    assert rows["tao", "tool"].calls > 1900
    assert rows["mean", "all"].mean_abs_error_s < rows["tao", "all"].mean_abs_error_s
    assert rows["tao", "all"].mean_abs_error_s < 3 * rows["mean", "all"].mean_abs_error_s


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_median_and_range_are_those_of_the_window(durations: list[int], window: int) -> None:
    history = History(window)
    for now, duration in enumerate(durations):
        history.add(duration, now)
    kept = durations[-window:]
    assert history.median == statistics.median(kept)
    assert history.range == max(kept) - min(kept)
