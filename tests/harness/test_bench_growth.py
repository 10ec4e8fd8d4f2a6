"""The benchmarks' own arithmetic; no test here looks at a clock."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from scripts import bench_sim, growth
from scripts.growth import Job, Point


def point(size: int, us: float, kb: float = 1.0, scheduler: str = "smetric") -> Point:
    job = Job("sessions", scheduler, 4, size, 10)
    return Point(job, 1000, us * 1000 / 1e6, kb)


def test_growth_that_is_too_fast_is_named() -> None:
    # 100 to 190 us is a factor of 1.9; 190 to 400 one of 2.1.
    points = [point(10, 100), point(100, 190), point(1000, 400)]
    assert growth.verdicts(points) == [
        "smetric: a turn takes 2.11 times as long with 1,000 sessions"
    ]
    # Another scheduler's first point is not compared with the last one's.
    assert growth.verdicts([point(1000, 100), point(10, 900, scheduler="tao")]) == []
    assert growth.verdicts([point(10, 1, kb=2.5)]) == ["smetric: 2.50 KB a turn with 10 sessions"]


def test_the_points_are_tenfold_steps() -> None:
    found = growth.jobs(["smetric"], base=50, top=100)
    assert [j.sessions for j in found if j.axis == "sessions"] == [50, 500, 5000]
    assert [j.replicas for j in found if j.axis == "replicas"] == [4, 40, 400]
    # The load of a replica is the same throughout.
    assert {j.workers / j.replicas for j in found} == {12}


def test_figures_can_be_shown_again(tmp_path: Path) -> None:
    points = [point(10, 100), point(100, 150)]
    file = tmp_path / "points.json"
    file.write_text(json.dumps([asdict(p) for p in points]))
    assert growth.read(file) == points
    page = tmp_path / "page.md"
    page.write_text("# Speed\n\nText.\n")
    for _ in range(2):
        growth.add_to(page, points, [], Path("img/growth"))
        assert page.read_text().count("## Growth") == 1
    assert "Text." in page.read_text()
    assert "| 1.50 |" in page.read_text()
    growth.plot(points, tmp_path / "figure")
    assert (tmp_path / "figure.svg").stat().st_size > 1000


def test_a_small_run_is_measured() -> None:
    found = growth.measure(Job("sessions", "round-robin", 2, 3, 2))
    assert found.turns > 50
    assert found.cpu_s > 0


def test_ratios_are_of_simulated_seconds_a_cpu_second() -> None:
    duel = bench_sim.Duel("t", 10, 100, "round robin", 50.0, 50.0, 0.5, 10.0, (18.0, 20.0, 25.0))
    assert duel.ratio == 20.0
    assert "| 100, 5 | **20** (18 to 25) |" in bench_sim.duel_lines([duel])[-1]
    # 1,000 simulated seconds in 2.5 CPU seconds, 0.5 of them the planner's.
    speed = bench_sim.Speed("tao", 400, 8000, 1, 1, 1000.0, 2.5, 0.5)
    assert speed.real_time == 500.0
    assert "| 500 | 500.0 | 200 | 4,000 |" in bench_sim.profile_lines([speed])[-1]
    assert "Not done: no." in bench_sim.page([], "no.", [speed])


def test_both_simulators_get_the_same_trace() -> None:
    for trace in bench_sim.traces(2):
        assert trace.turns == sum(len(session.turns) for session in trace.sessions)
        assert all(session.arrival_s is not None for session in trace.sessions)
