from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from agentsched import GateFailedError, UsageError
from results.cells import CellId
from results.compare import compare, parse_gate
from results.compare_view import comparison_to_csv, comparison_to_markdown, comparison_to_text
from results.metrics import METRICS
from results.run import Run
from results.store import RunStore, load_run
from tests.results.synthetic import S, turn, write_run

PLAIN = ["ttft_mean", "decode_tps", "pause_wait_mean", "cache_hit"]


def made(
    path: Path, ttft: dict[int, float], *, scheduler: str = "s", label: str = "simulated"
) -> Run:
    """A run with one turn a seed: TTFT as given, 11 output tokens, makespan 10 s."""
    cells = [CellId("w", scheduler, 1, seed) for seed in ttft]
    manifest = {"label": label, "cells": [c.as_dict() for c in cells]}
    with RunStore.open(path, "", manifest) as store:
        for cell in cells:
            first = int(ttft[cell.seed] * S)
            writer = store.start(cell)
            writer.turn(turn(first_token=first, finished=first + S))
            writer.finish(10 * S, {}, {})
    return load_run(path)


def test_changes_are_paired_by_seed(tmp_path: Path) -> None:
    before = made(tmp_path / "a", {0: 1.0, 1: 2.0, 2: 9.0})
    after = made(tmp_path / "b", {0: 1.1, 1: 2.2, 5: 9.0})
    found = compare(before, after, PLAIN)
    (pair,) = found.pairs
    change = pair.change(found.metrics[0])
    assert change.percent == pytest.approx(10)  # (3.3 - 3.0) / 3.0 over seeds 0 and 1
    assert change.interval == pytest.approx((10, 10))
    assert (change.n, change.meaning) == (2, "worse")
    assert [pair.change(m).meaning for m in found.metrics] == ["worse", "same", "same", "same"]


def test_runs_without_a_common_seed_are_compared_unpaired(tmp_path: Path) -> None:
    before, after = made(tmp_path / "a", {0: 1.0, 1: 3.0}), made(tmp_path / "b", {7: 1.0})
    found = compare(before, after, ["ttft_mean"])
    change = found.pairs[0].change(found.metrics[0])
    assert (change.percent, change.interval, change.n) == (-50, None, 0)
    assert change.meaning == "unclear"
    assert "unpaired and has no interval" in " ".join(comparison_to_text(found, 80).split())


def test_single_schedulers_of_two_names_are_compared(tmp_path: Path) -> None:
    before = made(tmp_path / "a", {0: 1.0}, scheduler="tao")
    after = made(tmp_path / "b", {0: 2.0}, scheduler="mine")
    found = compare(before, after, ["ttft_mean"])
    assert [pair.name for pair in found.pairs] == ["w, 1 worker, tao -> mine"]


def test_what_only_one_run_holds_is_said(tmp_path: Path) -> None:
    before = load_run(write_run(tmp_path / "a", schedulers=["tao", "smetric"], seeds=1))
    after = load_run(write_run(tmp_path / "b", schedulers=["tao", "round-robin"], seeds=1))
    found = compare(before, after, ["ttft_mean"])
    assert [pair.before[1] for pair in found.pairs] == ["tao"]
    assert found.unmatched == (
        "swe-bench-verified, 4 workers, smetric: in the first run alone",
        "swe-bench-verified, 4 workers, round-robin: in the second run alone",
    )
    other = load_run(write_run(tmp_path / "c", schedulers=["tao"], seeds=1, workers=3))
    with pytest.raises(UsageError, match="no finished cells in common"):
        compare(before, other)


def test_labels_are_kept(tmp_path: Path) -> None:
    before = made(tmp_path / "a", {0: 1.0})
    after = made(tmp_path / "b", {0: 1.0}, label="measured")
    text = " ".join(comparison_to_text(compare(before, after, ["ttft_mean"]), 80).split())
    assert f"before: {before.path} (simulated); after: {after.path} (measured)" in text
    assert "not of the same kind" in text


@pytest.mark.parametrize(
    ("gate", "trips"),
    [
        ("ttft.p95 > +5%", True),  # 1 s to 1.1 s: +10 %
        ("ttft.p95 > 5 %", True),
        ("ttft.p95 > +10.1%", False),
        ("ttft >= 9.9%", True),
        ("ttft_mean < -5%", False),
        ("ttft_mean > 1.05", True),  # the second run's value, in seconds
        ("ttft_mean > 1.2", False),
        ("turns_failed > 0", False),
        ("turns_ok <= 1", True),
        ("decode_tps < 0%", False),
        ("decode_tps <= 0%", True),
    ],
)
def test_gate(tmp_path: Path, gate: str, trips: bool) -> None:
    before, after = made(tmp_path / "a", {0: 1.0}), made(tmp_path / "b", {0: 1.1})
    found = compare(before, after, ["ttft_mean"], [gate])
    assert bool(found.failures) == trips
    if trips:
        with pytest.raises(GateFailedError, match="is met by w, 1 worker, s"):
            found.check()
    else:
        found.check()


def test_gates_that_are_met_are_told_a_line_each(tmp_path: Path) -> None:
    before, after = made(tmp_path / "a", {0: 1.0}), made(tmp_path / "b", {0: 1.5})
    found = compare(before, after, ["ttft_mean"], ["ttft_mean > +5%", "ttft_mean > +6%"])
    with pytest.raises(GateFailedError) as caught:
        found.check()
    lines = caught.value.message.splitlines()
    assert len(lines) == 2
    assert "+5%" in lines[0]
    assert "+6%" in lines[1]


def test_a_gate_on_something_unknown_does_not_pass(tmp_path: Path) -> None:
    before, after = made(tmp_path / "a", {0: 1.0}), made(tmp_path / "b", {0: 1.1})
    found = compare(before, after, ["ttft_mean"], ["goodput < -1%"])
    with pytest.raises(GateFailedError, match="cannot be evaluated"):
        found.check()


@pytest.mark.parametrize(
    "text", ["ttft", "ttft > ", "> 5%", "ttft => 5%", "ttft > five", "a;b > 1"]
)
def test_gates_that_make_no_sense(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        parse_gate(text)


def test_a_gate_on_an_unknown_metric() -> None:
    with pytest.raises(UsageError, match="no metric is called `speed`"):
        parse_gate("speed > 1")


def test_kinds_and_invalid_cells_stand_with_what_is_compared(tmp_path: Path) -> None:
    before = made(tmp_path / "a", {0: 1.0, 1: 2.0})
    made(tmp_path / "b", {0: 1.1, 1: 2.2}, label="measured")
    for place in (tmp_path / "b" / "cells").glob("*/summary.json"):
        summary = json.loads(place.read_text())
        facts = {"invalid": "the client was the bottleneck"}
        place.write_text(json.dumps(summary | {"label": "external", "facts": facts}))
    found = compare(before, load_run(tmp_path / "b"), PLAIN)
    assert "w, 1 worker, s (simulated -> external)" in comparison_to_text(found, 80)
    text = comparison_to_markdown(found)
    assert "### w, 1 worker, s (simulated -> external)" in text
    invalid = f"Not to be used: {tmp_path / 'b'}, w, 1 worker, s, seed 0: the client was the b"
    assert text.count(invalid) == 1
    gated = compare(before, load_run(tmp_path / "b"), PLAIN, ["ttft_mean > 99"])
    with pytest.raises(GateFailedError, match="cannot be evaluated for w, 1 worker, s: invalid"):
        gated.check()
    rows = list(csv.DictReader(io.StringIO(comparison_to_csv(found))))
    assert {(row["label_before"], row["label_after"]) for row in rows} == {
        ("simulated", "external")
    }


def test_views(tmp_path: Path) -> None:
    before = load_run(write_run(tmp_path / "a", schedulers=["tao"], seeds=3))
    after = load_run(write_run(tmp_path / "b", schedulers=["tao"], seeds=3, sessions=10))
    found = compare(before, after, [m.tag for m in METRICS])
    for width in (80, 120):
        text = comparison_to_text(found, width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
    rows = list(csv.DictReader(io.StringIO(comparison_to_csv(found))))
    assert [row["metric"] for row in rows] == [m.tag for m in METRICS]
    assert rows[0]["meaning"] in ("better", "worse", "unclear")
    markdown = comparison_to_markdown(found)
    assert all(line.count("|") == 7 for line in markdown.splitlines() if line.startswith("|"))
    assert json.dumps(rows)
