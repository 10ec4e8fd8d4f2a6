"""The map of regimes: places by hand, standings on a map made by hand, and the command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentsched import UsageError
from harness.advice.levels import play, with_kv
from harness.advice.place import Place, TurnCost, place_of
from harness.advice.recommend import advise
from harness.advice.regimes import MAP, Cell, distance, load_map, standings
from harness.advice.synthetic import made_for
from harness.capacity import resolve_cluster
from scripts.regressions import session
from tests.cli.command import agentsched

PS_PER_MS = 10**9


class Flat:
    """A decode step takes 10 ms, a prefill chunk 1 s, whatever is in it."""

    def mixed_ps(self, chunks: object, decodes: int, context_sum: int) -> int:
        return 1000 * PS_PER_MS if chunks else 10 * PS_PER_MS


def test_place_by_hand() -> None:
    cluster = with_kv(resolve_cluster("qwen3-8b", "1x1xh100"), 16_000)
    cost = TurnCost(cluster, Flat())  # type: ignore[arg-type]
    # Two turns: prompts of 8,192 and 8,192 + 100 + 0 tokens, 100 tokens of output, 2 s of tools
    # after the first.
    sessions = [session("s", 8192, 0, 100, 2, 2.0)]
    place = place_of(sessions, cluster, 4, cost)
    # Mean context (8,192 + 50 + 8,292 + 50) / 2 = 8,292; four workers on 16,000 tokens.
    assert place.working_set_kv == pytest.approx(4 * 8292 / 16_000)
    # 4,096 new tokens a turn are half a chunk: 0.5 s; 100 steps of 10 ms: 1 s; tools 1 s a turn.
    assert place.tool_model == pytest.approx(1 / 1.5)
    # 4 workers are at the engine 1.5 of 2.5 s: 2.4, so 2 decode at once; 0.5 s beside 1 s / 2.
    assert place.prefill_share == pytest.approx(0.5)
    assert place.workers_per_replica == 4


def test_sessions_made_for_a_place_come_out_there() -> None:
    cluster = resolve_cluster("qwen3-8b", "1x1xh100")
    cost = TurnCost(cluster)
    low, high = (
        place_of(made_for(tools, 16, share, cost, 40, 0), cluster, 16, cost)
        for tools, share in ((0.3, 0.2), (3.0, 0.6))
    )
    assert low.tool_model == pytest.approx(0.3, rel=0.5)
    assert high.tool_model == pytest.approx(3.0, rel=0.5)
    assert low.prefill_share == pytest.approx(0.2, abs=0.1)
    assert high.prefill_share == pytest.approx(0.6, abs=0.15)
    assert made_for(0.3, 16, 0.2, cost, 3, 5) == made_for(0.3, 16, 0.2, cost, 3, 5)


def _cell(kv: float, scheduler: str, latency: float) -> Cell:
    place = Place(kv, 1.0, 8.0, 0.3)
    levels = {"latency_mean": latency, "ttft_mean": latency, "ttft_p95": 1.0}
    return Cell((kv, 1.0, 8.0, 0.3), place, scheduler, 0, levels)


def test_standings_by_hand() -> None:
    cells = [_cell(0.5, "a", 10), _cell(0.5, "b", 10.05), _cell(2.0, "a", 15), _cell(2.0, "b", 10)]
    found, nearest = standings(Place(2.0, 1.0, 8.0, 0.3), cells)
    assert nearest == 0
    assert [one.scheduler for one in found] == ["b", "a"]
    best, other = found
    # `b` is 0.5 % behind at 0.5, which counts as a tie, and best at 2.
    assert (best.low, best.best_share) == (0, 1)
    assert best.high == pytest.approx(0.5)
    assert other.low == 0
    assert other.high == pytest.approx(50)
    # The regime at 0.5 is 2 x log2(4) = 4 away and weighs exp(-2) = 0.1353 against 1.
    assert other.behind == pytest.approx(50 / 1.1353, rel=1e-3)


def test_distance_is_one_for_the_square_root_of_two_in_working_set() -> None:
    here = Place(1.0, 1.0, 8.0, 0.3)
    assert distance(here, here) == 0
    assert distance(here, replace(here, working_set_kv=2**0.5)) == pytest.approx(1)


def test_shipped_map_is_whole() -> None:
    cells = load_map(MAP)
    groups: dict[tuple[object, ...], set[str]] = {}
    for cell in cells:
        groups.setdefault((cell.asked, cell.seed), set()).add(cell.scheduler)
    assert len({frozenset(names) for names in groups.values()}) == 1
    assert len(groups) == 48  # 3 working sets x 2 tool times x 2 loads x 2 prefill shares x 2 seeds


def test_shipped_map_is_what_the_simulator_plays() -> None:
    """One regime of it, again."""
    from scripts.regimes import Point, cluster, play_point

    base = cluster()
    rows = list(play_point(Point(0.5, 3.0, 8, 0.2), 0, base, TurnCost(base)))
    kept = {
        (c.scheduler, c.levels["latency_mean"])
        for c in load_map(MAP)
        if c.asked == (0.5, 3.0, 8.0, 0.2) and c.seed == 0
    }
    again = {(row["scheduler"], float(row["latency_mean"])) for row in rows}
    for name, latency in again:
        (kept_latency,) = [value for kept_name, value in kept if kept_name == name]
        assert latency == pytest.approx(kept_latency, rel=0.25), name


def test_damaged_map(tmp_path: Path) -> None:
    path = tmp_path / "map.csv"
    path.write_text("scheduler,seed\ntao,0\n", encoding="utf-8")
    with pytest.raises(UsageError, match="line 2"):
        load_map(path)
    with pytest.raises(UsageError, match="no map"):
        load_map(tmp_path / "none.csv")


def test_far_from_the_map_it_says_so() -> None:
    advice = advise(
        "swe-bench-mini-short", workers=2, model="qwen3-8b", topology="8x1xh100", sessions=4
    )
    assert advice.distance > 2
    assert any("guess" in line for line in advice.lines)
    assert any("not scarce" in line for line in advice.lines)


def test_nothing_finished_is_told() -> None:
    cluster = resolve_cluster("qwen3-8b", "1x1xh100")
    with pytest.raises(UsageError, match="no task finished"):
        play([session("s", 50_000, 10, 10, 2, 0.0)], cluster, "round-robin", workers=1, seed=0)


def test_command(tmp_path: Path) -> None:
    done = agentsched(
        "advise", "swe-bench-mini-short", "--sessions", "4", "--workers", "4", "--model",
        "qwen3-8b", "--topology", "1x1xh100", "--check", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "working set over KV" in done.stdout
    assert "Recommended:" in done.stdout
    assert "Played on this traffic" in done.stdout
    wrong = agentsched(
        "advise", "swe-bench-mini-short", "--model", "qwen3-0.6b", "--topology", "1p3d-a40",
        cwd=tmp_path,
    )  # fmt: skip
    assert wrong.returncode == 2
    assert "prefill replicas" in wrong.stderr
