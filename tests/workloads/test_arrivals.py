"""Arrivals of open-loop sessions, and mixes of workloads."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from agentsched import UsageError
from workloads.arrivals import gamma, place, poisson, recorded
from workloads.mixing import mixed_sessions
from workloads.model import Session, TurnSpec
from workloads.profiles.generate import generate
from workloads.profiles.mixed import mix_weights
from workloads.trace import write_trace

MANY = [Session(str(i), (TurnSpec(1, 1),), "w", "recorded") for i in range(4000)]


def _gaps(sessions: list[Session]) -> np.ndarray:
    return np.diff([0.0] + [s.arrival_s for s in sessions if s.arrival_s is not None])


@pytest.mark.parametrize("variation", [0.5, 1.0, 3.0])
def test_gamma_gaps_have_their_mean_and_variation(variation: float) -> None:
    gaps = _gaps(gamma(MANY, 2.0, 1, variation))
    # 4,000 gaps: the mean is known to variation / sqrt(4000), 5 % at most here; the variation of
    # a skew law to some 10 %.
    assert gaps.mean() == pytest.approx(0.5, rel=0.12)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.12)


def test_rates_share_their_gaps_but_for_the_scale() -> None:
    slow, fast = gamma(MANY[:50], 0.5, 7, 3.0), gamma(MANY[:50], 2.0, 7, 3.0)
    assert np.allclose(_gaps(slow), 4 * _gaps(fast))
    assert np.allclose(_gaps(gamma(MANY[:9], 4.0, 7, 0.0)), 0.25)


def _arriving(*times: float | None) -> list[Session]:
    turn = (TurnSpec(1, 1),)
    return [Session(f"s{i}", turn, "w", "recorded", arrival_s=time) for i, time in enumerate(times)]


def test_recorded_arrivals_start_at_0_and_can_be_sped_up() -> None:
    child = Session("c", (TurnSpec(1, 1),), "w", "recorded", parent="s0", spawn_turn=0)
    sessions = [*_arriving(100.0, 130.0, 110.0), child]
    assert [s.arrival_s for s in recorded(sessions)] == [0.0, 30.0, 10.0, None]
    # Two gaps in 30 s are 1/15 a second; at 0.2 a second all is three times as fast.
    assert [s.arrival_s for s in recorded(sessions, 0.2)] == [
        0.0,
        10.0,
        pytest.approx(10 / 3),
        None,
    ]
    with pytest.raises(UsageError, match="1 of 2 sessions have no"):
        recorded(_arriving(1.0, None))
    with pytest.raises(UsageError, match="cannot be brought"):
        recorded(_arriving(1.0, 1.0), 5.0)


def test_arrivals_by_name() -> None:
    few = MANY[:5]
    assert place(few, "poisson", 2.0, 3) == poisson(few, 2.0, 3)
    assert place(few, "gamma", 2.0, 3, variation=2.0) == gamma(few, 2.0, 3, 2.0)
    assert place(_arriving(5.0), "recorded", None, 3)[0].arrival_s == 0.0
    with pytest.raises(UsageError, match="unknown arrivals"):
        place(few, "uniform", 1.0, 0)
    with pytest.raises(UsageError, match="give sessions a second"):
        place(few, "poisson", None, 0)
    with pytest.raises(UsageError, match="variation"):
        place(few, "gamma", 1.0, 0, variation=-1)
    with pytest.raises(ValueError, match="rate_per_s"):
        poisson(few, 0.0, 0)
    with pytest.raises(ValueError, match="variation"):
        gamma(few, 1.0, 0, 1000)


def test_a_mix_draws_by_weight_and_keeps_families(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    parent = Session("p", (TurnSpec(1, 1),), "rec", "recorded")
    child = Session("c", (TurnSpec(1, 1),), "rec", "recorded", parent="p", spawn_turn=0)
    write_trace(trace, [parent, child])
    weights = {str(trace): 1.0, "azure-chat": 3.0, "azure-code": 0.0}
    found = mixed_sessions(weights, 400, seed=5)
    roots = [s for s in found if s.parent is None]
    recorded_roots = sum(s.workload == "rec" for s in roots)
    # 100 are expected, with a spread of sqrt(400 * 0.25 * 0.75) = 8.7.
    assert len(roots) == 400
    assert 65 < recorded_roots < 135
    assert len(found) - len(roots) == recorded_roots
    assert len({s.id for s in found}) == len(found)
    for above, below in pairwise(found):
        assert below.parent is None or below.parent == above.id
    assert mixed_sessions(weights, 400, seed=5) == found
    assert mixed_sessions(weights, 400, seed=6) != found
    write_trace(tmp_path / "mix.jsonl", found)
    with pytest.raises(UsageError, match="all weights"):
        mixed_sessions({"azure-chat": 0.0}, 5, 0)


def test_weights_are_read_and_checked() -> None:
    assert mix_weights(["azure-chat=0.5", " mixed "]) == {"azure-chat": 0.5, "mixed": 1.0}
    for items, words in (
        (["a=x"], "cannot be"),
        (["a=-1"], "cannot be"),
        (["a=nan"], "cannot be"),
        (["a", "a=2"], "twice"),
        ([""], "no name"),
    ):
        with pytest.raises(UsageError, match=words):
            mix_weights(items)


def test_the_mixed_profile_holds_any_profiles() -> None:
    parts = {"parts": "azure-chat=3, mooncake-chat=1"}
    found = [s.workload for s in generate("mixed", sessions=200, seed=1, settings=parts)]
    assert set(found) == {"azure-chat", "mooncake-chat"}
    # 150 are expected, with a spread of 6.1.
    assert 125 < found.count("azure-chat") < 175
    with pytest.raises(UsageError, match="cannot hold"):
        generate("mixed", sessions=1, settings={"parts": "mixed"})
