"""Sessions that arrive by themselves, objectives, energy, and capacity that is misreported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentsched import SpecError
from harness.experiment import run
from harness.plan import plan
from harness.spec import load_spec
from results.store import load_run
from tests.cli.command import tiny_spec
from workloads.arrivals import poisson
from workloads.catalog import load_workload
from workloads.trace import load_trace, write_trace

OPEN = [{"name": "tiny.jsonl", "arrivals": {"rate_per_s": [0.5, 2]}}]


def open_spec(folder: Path, **fields: Any) -> Path:
    return tiny_spec(folder, workloads=OPEN, schedulers=["round-robin"], seeds=[1], **fields)


def test_gaps_scale_with_the_rate_and_keep_order() -> None:
    sessions = load_workload("swe-bench-mini-short", sessions=2000, seed=0)
    slow, fast = poisson(sessions, 0.5, 7), poisson(sessions, 2.0, 7)
    at = [s.arrival_s or 0.0 for s in slow]
    assert at == sorted(at)
    assert [s.id for s in slow] == [s.id for s in sessions]
    assert at == pytest.approx([4 * (s.arrival_s or 0.0) for s in fast])
    # 2,000 gaps of mean 2 s: the last arrival is 4,000 s in the mean, deviation 2 * sqrt(2000).
    assert abs(at[-1] - 4000) < 4 * 2 * 2000**0.5


def test_one_cell_for_each_rate_and_no_worker_count(tmp_path: Path) -> None:
    result = run(open_spec(tmp_path), out=tmp_path / "run", jobs=1)
    result.check()
    cells = load_run(result.path).cells
    assert list(cells["cell_workload"]) == ["tiny-0.5-per-s", "tiny-2-per-s"]
    assert list(cells["workers"]) == [0, 0]
    # Eight sessions that arrive four times as far apart cannot end sooner.
    assert cells["makespan_s"][0] > cells["makespan_s"][1]


def test_bursty_arrivals_are_named_and_differ_from_poisson(tmp_path: Path) -> None:
    bursty = {"process": "gamma", "variation": 5, "rate_per_s": [2]}
    spec = tiny_spec(
        tmp_path,
        workloads=[{"name": "tiny.jsonl", "arrivals": bursty}],
        schedulers=["round-robin"],
        seeds=[1],
    )
    found = load_run(run(spec, out=tmp_path / "run", jobs=1).path)
    assert list(found.cells["cell_workload"]) == ["tiny-2-per-s-gamma"]
    even = load_run(run(open_spec(tmp_path), out=tmp_path / "even", jobs=1).path)
    assert sorted(found.sessions["started"]) != sorted(
        even.sessions[even.sessions["cell_workload"] == "tiny-2-per-s"]["started"]
    )


def test_recorded_arrivals_need_a_trace_that_says_when(tmp_path: Path) -> None:
    spec = tiny_spec(
        tmp_path,
        workloads=[{"name": "tiny.jsonl", "arrivals": {"process": "recorded"}}],
        schedulers=["round-robin"],
    )
    with pytest.raises(SpecError, match="no recorded arrival"):
        plan(load_spec(spec))
    trace = tmp_path / "tiny.jsonl"
    timed = [
        replace(session, arrival_s=100.0 + 3 * index)
        for index, session in enumerate(load_trace(trace))
    ]
    write_trace(trace, timed)
    found = load_run(run(spec, out=tmp_path / "run", jobs=1).path)
    assert list(found.cells["cell_workload"].unique()) == ["tiny-as-recorded"]
    first_seed = found.sessions[found.sessions["seed"] == found.sessions["seed"].min()]
    starts = sorted(first_seed["started"])
    assert [start / 1e9 for start in starts] == [3.0 * i for i in range(len(starts))]


def test_a_rate_is_needed_but_for_recorded_arrivals(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="`rate_per_s` is missing"):
        load_spec(tiny_spec(tmp_path, workloads=[{"name": "tiny.jsonl", "arrivals": {}}]))


def test_workers_and_arrivals_exclude_each_other(tmp_path: Path) -> None:
    both = [{"name": "tiny.jsonl", "workers": 4, "arrivals": {"rate_per_s": 1}}]
    with pytest.raises(SpecError, match="exclude each other"):
        load_spec(tiny_spec(tmp_path, workloads=both))
    with pytest.raises(SpecError, match="empty list"):
        load_spec(tiny_spec(tmp_path, workloads=[{"name": "tiny.jsonl", "workers": []}]))


def test_objectives_and_energy_reach_the_metrics(tmp_path: Path) -> None:
    spec = open_spec(tmp_path, slo={"ttft_s": 1e-6})
    path = run(spec, out=tmp_path / "run", jobs=1).path
    found = load_run(path)
    cells = found.cells
    assert list(cells["slo_violations"]) == [100.0, 100.0]
    facts = next(iter(found.summaries.values()))["facts"]
    seconds = facts["phase_seconds"]["r0"]
    assert sum(seconds.values()) == pytest.approx(cells["makespan_s"][0], rel=1e-6)
    assert facts["energy_low_j"] < facts["energy_j"] < facts["energy_high_j"]
    assert cells["tokens_per_joule"][0] == pytest.approx(3200 / facts["energy_j"], rel=1e-6)


def test_a_scheduler_believes_the_capacity_that_is_reported(tmp_path: Path) -> None:
    held = []
    for folder, sim in (("a", {}), ("b", {"reported_kv_tokens": 900})):
        (tmp_path / folder).mkdir()
        spec = tiny_spec(tmp_path / folder, schedulers=["thunderagent"], seeds=[1], sim=sim)
        path = run(spec, out=tmp_path / folder / "run", jobs=1).path
        held.append(load_run(path).cells["held_share"].iloc[0])
    # A session starts with 600 tokens and a buffer of 100: of 900 believed, two do not fit.
    assert held[0] == 0
    assert held[1] > 0
