"""The search for the cheapest cluster: on figures by formula, and once by simulation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import UsageError
from cli.plan_report import data, text, write
from harness.models import find_model
from harness.planning.candidates import Line, Offer, lines_of
from harness.planning.search import Load, Probe, Simulated, met, search, slack
from harness.saturation import Goal
from tests.cli.command import agentsched, tiny_trace

GOAL = Goal("ttft_p95", True, 2.0, "s")
LOAD = Load("tiny", None, 4, None, (0,))


def line(
    gpu: str, price: float, scheduler: str = "tao", split: tuple[int, int] | None = None
) -> Line:
    return Line(Offer(gpu, price), 1, split, scheduler)


class Formula:
    """TTFT of a line is its work over the number of units."""

    def __init__(self, work: dict[Line, float], margin: float = 0.0) -> None:
        self.work, self.margin = work, margin
        self.asked: list[tuple[Line, int]] = []

    def __call__(self, wanted: Sequence[tuple[Line, int]]) -> list[Probe]:
        self.asked += wanted
        made = []
        for one, units in wanted:
            value = self.work[one] / units
            made.append(Probe(one, units, {"ttft_p95": value}, met(GOAL, value, self.margin)))
        return made


def test_the_cheapest_is_found() -> None:
    fast, slow = line("h100", 3.5), line("a40", 0.6)
    # 2 s need 3 x h100 (5.4 / 3 = 1.8; / 2 = 2.7) = 10.5 USD, or 9 x a40 (17 / 9 = 1.89) = 5.4.
    measure = Formula({fast: 5.4, slow: 17.0})
    found = search([fast, slow], [GOAL], LOAD, measure, max_gpus=16, margin=0.0)
    best = found.best
    assert best is not None
    assert (best.line, best.units) == (slow, 9)
    assert best.cost == pytest.approx(5.4)
    # Once 9 x a40 is known, no more than one h100 is worth a try.
    assert len(measure.asked) == len(set(measure.asked))
    # With at most 8 GPUs, a40 does not get there: 17 / 8 = 2.1.
    eight = search(
        [fast, slow], [GOAL], LOAD, Formula({fast: 5.4, slow: 17.0}), max_gpus=8, margin=0
    )
    assert eight.best is not None
    assert (eight.best.line, eight.best.units) == (fast, 3)


def test_the_margin_is_kept() -> None:
    one = line("h100", 1.0)
    # A margin of 10 % asks for 1.8: 5.5 / 3 = 1.83 is not enough, 5.5 / 4 = 1.375 is.
    found = search([one], [GOAL], LOAD, Formula({one: 5.5}, 0.1), max_gpus=16, margin=0.1)
    assert found.best is not None
    assert found.best.units == 4
    assert slack(found.best, [GOAL]) == pytest.approx(0.3125)


@given(
    st.lists(st.tuples(st.floats(0.2, 60.0), st.floats(0.1, 9.0)), min_size=1, max_size=6),
    st.integers(1, 20),
)
@settings(max_examples=150, deadline=None)
def test_as_cheap_as_trying_everything(works: list[tuple[float, float]], max_gpus: int) -> None:
    lines = [line("h100", price, f"s{i}") for i, (_, price) in enumerate(works)]
    measure = Formula({one: work for one, (work, _) in zip(lines, works, strict=True)})
    found = search(lines, [GOAL], LOAD, measure, max_gpus=max_gpus, margin=0.0)
    costs = [
        one.cost(units)
        for one in lines
        for units in range(1, max_gpus + 1)
        if measure.work[one] / units <= GOAL.bound
    ]
    assert (found.best.cost if found.best is not None else None) == min(costs, default=None)
    assert len(measure.asked) == len({(one.scheduler, units) for one, units in measure.asked})
    heights = [probe.values["ttft_p95"] for probe in found.frontier]
    assert heights == sorted(heights, key=lambda v: -(v or 0.0))


def test_candidates() -> None:
    model = find_model("qwen3-32b")
    lines, refused = lines_of(model, [Offer("a40", 0.6), Offer("h100", 3.5)], ["tao", "ampd"], 4)
    # 61 GiB of weights fit no single A40.
    assert any("a40" in why and "does not fit" in why for why in refused)
    assert {(one.offer.gpu, one.tensor_parallel) for one in lines} >= {("h100", 1), ("h100", 2)}
    assert ("a40", 1) not in {(one.offer.gpu, one.tensor_parallel) for one in lines}
    assert all(one.gpus(1) <= 4 for one in lines)
    assert {one.split is None for one in lines if one.scheduler == "ampd"} == {False}
    split = Line(Offer("h100", 3.5), 1, (1, 3), "ampd")
    assert split.topology(2) == "2p6d-1xh100"
    assert [r.role for r in split.cluster(model, 1).replicas] == [
        "prefill",
        "decode",
        "decode",
        "decode",
    ]
    assert split.cost(2) == pytest.approx(8 * 3.5)


@pytest.mark.parametrize("wrong", ["h100", "h100:", "h100:-1", "h100:nan", "gtx:1", "cpu:1"])
def test_offers_without_kind_or_price_are_refused(wrong: str) -> None:
    with pytest.raises(UsageError):
        Offer.parse(wrong)


def test_a_plan_by_simulation(tmp_path: Path) -> None:
    trace = tiny_trace(tmp_path)
    model = find_model("qwen3-8b")
    load = Load(str(trace), None, 4, None, (0,))
    lines, refused = lines_of(model, [Offer("h100", 3.5)], ["least-loaded"], 1)
    goals = [Goal("ttft_p95", True, 5.0, "s")]
    found = search(
        lines,
        goals,
        load,
        Simulated(model, goals, load, 0.1),
        max_gpus=1,
        margin=0.1,
        refused=refused,
    )
    assert found.best is not None
    assert found.best.line.topology(1) == "1x1xh100"
    names = [file.name for file in write(found, tmp_path / "plan")]
    assert names == ["plan.md", "plan.json", "frontier.png"]
    assert "1x1xh100" in text(found)
    assert json.loads((tmp_path / "plan" / "plan.json").read_text()) == json.loads(
        json.dumps(data(found))
    )


def test_command_refuses(tmp_path: Path) -> None:
    trace = tiny_trace(tmp_path)
    head = ("plan", trace, "--model", "qwen3-8b", "--gpu", "h100:3.5")
    # The trace does not say when its sessions came.
    assert agentsched(*head, "--slo", "ttft.p95<=2", cwd=tmp_path).returncode == 2
    done = agentsched(*head, "--slo", "nonsense<=2", "--workers", "4", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
