from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.metrics import Better
from results.statistics import (
    Estimate,
    Interval,
    best_of,
    bootstrap_generator,
    difference,
    estimate,
    paired_difference,
    rivals,
    tail_share,
)
from tests.oracles import metrics as oracle

RESAMPLES = 200


def draws(n: int) -> list[list[int]]:
    """The resamples that the product draws with the same generator."""
    drawn = bootstrap_generator().integers(0, n, size=(RESAMPLES, n))
    return [[int(place) for place in row] for row in drawn]


def test_positive_is_better_for_both_directions() -> None:
    values = {"own": {0: 80.0}, "a": {0: 100.0}, "b": {0: 120.0}}
    lower = difference(values, "own", ["a", "b"], "lower", bootstrap_generator())
    assert lower is not None
    assert (lower.percent, lower.against, lower.n) == (20.0, "a", 1)  # (100 - 80) / 100
    higher = difference(values, "own", ["a", "b"], "higher", bootstrap_generator())
    assert higher is not None
    assert higher.percent == pytest.approx(-100 / 3)  # (80 - 120) / 120
    assert higher.against == "b"


def test_golden_bootstrap_of_two_seeds() -> None:
    # Resamples of two seeds are (0,0), (0,1), (1,0), (1,1): means 10, 15, 15, 20 with weights
    # 1/4, 1/2, 1/4. With thousands of draws the 2.5 % and 97.5 % points are the extremes.
    found = estimate([10.0, 20.0], bootstrap_generator())
    assert found == Estimate(15.0, Interval(10.0, 20.0), 2)
    # own 10, 20; rivals a 12, 28 and b 16, 16. Over all seeds own 15, a 20, b 16: best is b.
    # (0,0): own 10, best a 12: 100*2/12; (0,1): own 15, best b 16: 6.25; (1,1): own 20, b 16: -25.
    values = {"own": {0: 10.0, 1: 20.0}, "a": {0: 12.0, 1: 28.0}, "b": {0: 16.0, 1: 16.0}}
    gap = difference(values, "own", ["a", "b"], "lower", bootstrap_generator())
    assert gap is not None
    assert gap.percent == pytest.approx(6.25)
    assert gap.against == "b"
    assert gap.interval == pytest.approx((-25.0, 100 * 2 / 12))


def test_one_seed_gives_no_interval() -> None:
    assert estimate([3.0], bootstrap_generator()) == Estimate(3.0, None, 1)
    gap = difference({"a": {0: 1.0}, "b": {0: 2.0}}, "a", ["b"], "lower", bootstrap_generator())
    assert gap is not None
    assert gap.interval is None
    with pytest.raises(ValueError, match="at least one"):
        estimate([], bootstrap_generator())


@pytest.mark.parametrize(
    ("values", "better"),
    [
        ({"a": {0: 1.0}, "b": {0: 0.0}}, "lower"),  # best baseline is 0
        ({"a": {0: 1.0}, "b": {1: 2.0}}, "lower"),  # no common seed
        ({"a": {0: 1.0}, "b": {}}, "lower"),
        ({"a": {0: 1.0}}, "lower"),
        ({"a": {0: 1.0}, "b": {0: 2.0}}, "neither"),
    ],
)
def test_nothing_to_compare(values: dict[str, dict[int, float]], better: Better) -> None:
    assert difference(values, "a", ["b"], better, bootstrap_generator()) is None


def test_only_common_seeds_are_compared() -> None:
    values = {"a": {0: 1.0, 1: 1.0, 2: 100.0}, "b": {0: 2.0, 1: 2.0}}
    gap = difference(values, "a", ["b"], "lower", bootstrap_generator())
    assert gap is not None
    assert (gap.percent, gap.n) == (50.0, 2)


def test_common_random_numbers_cancel() -> None:
    """Seeds differ a hundredfold, yet the paired difference is exact."""
    values = {"a": {0: 9.0, 1: 90.0, 2: 900.0}, "b": {0: 10.0, 1: 100.0, 2: 1000.0}}
    gap = difference(values, "a", ["b"], "lower", bootstrap_generator())
    assert gap is not None
    assert gap.interval == pytest.approx((10.0, 10.0))


@st.composite
def tables(draw: st.DrawFn) -> dict[str, dict[int, float]]:
    seeds = draw(st.lists(st.integers(0, 20), min_size=2, max_size=6, unique=True))
    value = st.floats(0.5, 1e4)
    return {name: {seed: draw(value) for seed in seeds} for name in ("own", "a", "b", "c")}


@settings(max_examples=60, deadline=None)
@given(tables(), st.booleans())
def test_intervals_agree_with_plain_python(
    values: dict[str, dict[int, float]], higher: bool
) -> None:
    baselines = ["a", "b", "c"]
    better: Better = "higher" if higher else "lower"
    gap = difference(values, "own", baselines, better, bootstrap_generator(), RESAMPLES)
    assert gap is not None
    wanted = oracle.difference_interval(values, "own", baselines, higher, draws(len(values["own"])))
    assert gap.interval == pytest.approx(wanted, rel=1e-7, abs=1e-6)
    assert gap.interval is not None
    own = estimate(list(values["own"].values()), bootstrap_generator(), RESAMPLES)
    assert own.interval is not None
    slack = 1e-9 * own.mean
    assert own.interval.low - slack <= own.mean <= own.interval.high + slack


def test_tails_are_those_of_the_expanded_percentile_interval() -> None:
    # Five seeds: sqrt(5/4) x 2.77645 = 3.10416, and Phi(-3.10416) = 0.000954.
    assert tail_share(5) == pytest.approx(0.000954, abs=1e-6)
    # Ten: sqrt(10/9) x 2.26216 = 2.38452, Phi(-2.38452) = 0.00855. Many: 2.5 %.
    assert tail_share(10) == pytest.approx(0.00855, abs=1e-5)
    assert tail_share(10_001) == pytest.approx(0.025, abs=1e-4)
    for freedom, bound in oracle.STUDENT.items():
        n = freedom + 1
        wanted = math.erfc(math.sqrt(n / freedom) * bound / math.sqrt(2)) / 2
        assert tail_share(n) == pytest.approx(wanted, rel=1e-6)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Nominal 95 %: 92 % with five seeds, where the plain percentiles hold 84 %; 95 with twenty."""
    rng = np.random.Generator(np.random.PCG64(7))
    for n, low, high in ((5, 0.90, 0.94), (20, 0.93, 0.97)):
        hits = 0
        for _ in range(1000):
            found = estimate(list(rng.normal(10, 1, n)), rng, 2000)
            assert found.interval is not None
            hits += found.interval.low <= 10 <= found.interval.high
        assert low <= hits / 1000 <= high


def test_paired_difference_between_two_runs() -> None:
    before, after = {0: 10.0, 1: 20.0, 7: 1.0}, {0: 11.0, 1: 22.0, 8: 1.0}
    found = paired_difference(before, after, bootstrap_generator())
    assert found is not None
    change, interval, n = found
    assert change == pytest.approx(10.0)
    assert n == 2
    assert interval == pytest.approx((10.0, 10.0))
    assert paired_difference({0: 1.0}, {1: 1.0}, bootstrap_generator()) is None
    assert paired_difference({0: 0.0}, {0: 1.0}, bootstrap_generator()) is None


def test_best_marks_every_tie_but_not_when_all_are_equal() -> None:
    one, two = Estimate(1.0, None, 1), Estimate(2.0, None, 1)
    assert best_of({"a": one, "b": two, "c": one}, "lower") == {"a", "c"}
    assert best_of({"a": one, "b": two}, "higher") == {"b"}
    assert best_of({"a": one, "b": one}, "lower") == set()
    assert best_of({"a": one, "b": two}, "neither") == set()


def test_variants_are_not_each_others_baselines() -> None:
    names = ["round-robin", "tao", "tao-no-cache", "tao-bfd", "thunderagent", "thunderagent-decay"]
    assert rivals("tao", names) == ["round-robin", "thunderagent", "thunderagent-decay"]
    assert rivals("tao-no-cache", names) == ["round-robin", "thunderagent", "thunderagent-decay"]
    assert rivals("thunderagent", names) == ["round-robin", "tao", "tao-no-cache", "tao-bfd"]
    assert rivals("round-robin", names) == names[1:]
    # Without `tao` itself nothing says that these two belong together.
    assert rivals("tao-bfd", ["tao-bfd", "tao-no-cache"]) == ["tao-no-cache"]
