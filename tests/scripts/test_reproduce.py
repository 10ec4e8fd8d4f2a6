"""The reproduction scripts on small runs, and the page made from what they leave."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from harness.overrides import Flags
from harness.plan import plan
from harness.spec import load_spec, preset_names
from results.published import VERDICTS, Ours, claims, tally
from results.statistics import Interval
from scripts import conserve_error_sweep, status, tao_dp_vs_heuristic, tao_readiness
from scripts._reproduce import Scale, Study, claim_named, gain, latex, markdown, ours_text

ROOT = Path(__file__).parents[2]


def small(folder: Path, share: float = 0.05) -> Scale:
    return Scale(seeds=2, share=share, jobs=1, runs=folder / "runs", out=folder / "out")


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_can_run(name: str) -> None:
    found = plan(load_spec(name, Flags(seeds=1, assignments=["workloads.0.sessions=4"])))
    assert found.cells
    assert found.cluster.kv_tokens > 0


def test_a_script_leaves_tables_figure_and_claims(tmp_path: Path) -> None:
    tao_readiness.study(small(tmp_path))
    out = tmp_path / "out"
    names = {path.name for path in out.iterdir()}
    assert {f"tao_readiness.{ending}" for ending in ("csv", "md", "tex", "svg", "png")} <= names
    outcomes = json.loads((out / "tao_readiness.claims.json").read_text())
    assert [one["id"].rpartition(".")[2] for one in outcomes] == [
        "decode",
        "tool_end_to_first_token",
        "pause_on",
        "pause_off",
    ]
    assert {one["verdict"] for one in outcomes} <= set(VERDICTS)
    # Two profiles, two arms, each with its number of seeds.
    table = pd.read_csv(out / "tao_readiness.csv")
    assert list(table["n"]) == [2, 2, 2, 2]


def test_a_second_run_takes_the_cells_up_and_writes_the_same(tmp_path: Path) -> None:
    scale = small(tmp_path)
    tao_readiness.study(scale)
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("summary.json")}
    first = {p.name: p.read_bytes() for p in scale.out.iterdir()}
    tao_readiness.study(scale)
    assert stamps == {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("summary.json")}
    assert first == {p.name: p.read_bytes() for p in scale.out.iterdir()}


def test_conserve_does_not_change_with_errors_of_prediction(tmp_path: Path) -> None:
    conserve_error_sweep.study(small(tmp_path, 0.03))
    outcomes = json.loads((tmp_path / "out" / "conserve_error_sweep.claims.json").read_text())
    found = {one["id"]: one["verdict"] for one in outcomes}
    assert found["conserve.robustness.conserve"] == "reproduced"
    table = pd.read_csv(tmp_path / "out" / "conserve_error_sweep.csv")
    own = table[table["scheduler"] == "conserve"].drop(columns="error rate")
    assert len(own.drop_duplicates()) == 1


def test_the_exact_plan_is_never_worth_less(tmp_path: Path) -> None:
    tao_dp_vs_heuristic.study(small(tmp_path, 0.05))
    table = pd.read_csv(tmp_path / "out" / "tao_dp_vs_heuristic.csv").set_index("snapshots")
    assert table.loc["all", "worse"] == 0
    parts = ["by credit", "by readiness", "by footprint"]
    assert table.loc["all", parts].sum() == table.loc["all", "better"]


def test_gain_is_against_the_best_of_the_others() -> None:
    # Means 10, 20 and 16: 37.5 % below the best of the others, 100 x (16 - 10) / 16.
    values = {"a": {0: 9.0, 1: 11.0}, "b": {0: 20.0, 1: 20.0}, "c": {0: 15.0, 1: 17.0}}
    found = gain(values, "a", ["b", "c"], "lower")
    assert found is not None
    assert found.value == pytest.approx(37.5)
    assert found.n == 2


def test_a_verdict_follows_from_sign_interval_and_size(tmp_path: Path) -> None:
    report = Study("x", "x", small(tmp_path))
    claim = "conserve.ttfet.p95"  # +51.08 %
    for value, low, high, expected in (
        (45.0, 40.0, 50.0, "reproduced"),
        (5.0, 4.0, 6.0, "direction only"),
        (5.0, -1.0, 9.0, "inconclusive"),
        (-5.0, -6.0, -4.0, "not reproduced"),
    ):
        outcome = report.judge(claim, [Ours(value, Interval(low, high), 5)], "setting")
        assert outcome.verdict == expected
    assert report.judge(claim, [], "setting").verdict == "not testable"


def test_formats() -> None:
    frame = pd.DataFrame([{"a_b": "1|2", "c": 1234.567}])
    assert markdown(frame).splitlines() == ["| a_b | c |", "|---|---|", "| 1\\|2 | 1235 |"]
    assert "a\\_b & c \\\\" in latex("caption", frame)
    ours = Ours(12.34, Interval(10.0, 15.0), 5)
    assert ours_text(claim_named("conserve.ttfet.p95"), ours) == "+12.3 % [+10.0, +15.0]"
    assert ours_text(claim_named("tao.predictor.mae"), ours) == "12.34 [10, 15]"


def test_status_counts_every_claim_once(tmp_path: Path) -> None:
    scale = small(tmp_path)
    tao_readiness.study(scale)
    status.write(scale)
    text = (scale.out / "STATUS.md").read_text()
    for claim in claims():
        assert text.count(f"| `{claim.id}` |") == 1
    totals = {
        line.split("**")[1]: int(line.split("|")[2])
        for line in text.splitlines()
        if line.startswith("| **")
    }
    assert sum(totals.values()) == len(claims())
    assert list(totals) == list(VERDICTS)


def test_the_committed_page_is_made_from_the_committed_claims(tmp_path: Path) -> None:
    folder = ROOT / "results" / "reproduction"
    found = [
        row for path in folder.glob("*.claims.json") for row in json.loads(path.read_text("utf-8"))
    ]
    ids = [row["id"] for row in found]
    assert len(ids) == len(set(ids))
    measured = {*ids, *status.PARAMETERS}
    assert measured == {claim.id for claim in claims()}
    text = (folder / "STATUS.md").read_text("utf-8")
    counts = tally(row["verdict"] for row in found)
    assert f"| **reproduced** | {counts['reproduced']} |" in text
