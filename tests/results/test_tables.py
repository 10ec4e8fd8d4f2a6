from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from agentsched import SimulationError, UsageError
from results.cells import CellId
from results.groups import groups_of
from results.metrics import METRICS
from results.render import rows_to_latex, to_csv, to_latex, to_markdown, to_text
from results.run import Run
from results.store import RunStore, load_run
from results.tables import MetricTable, tables
from results.verdicts import judge
from tests.results import golden
from tests.results.synthetic import FACTS, SPEED, S, turn, write_cell, write_run

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Five schedulers, five seeds, in a setting for which there are published figures."""
    path = tmp_path_factory.mktemp("tables") / "run"
    return load_run(write_run(path, workers=96, sessions=150, turns=4))


@pytest.fixture(scope="module")
def table(run: Run) -> MetricTable:
    (found,) = tables(run)
    return found


@pytest.mark.parametrize("width", [80, 120])
def test_terminal_snapshot(table: MetricTable, width: int) -> None:
    """To accept a change: write `found` to the file and look at it."""
    found = to_text([table], width)
    assert found == (SNAPSHOTS / f"main_{width}.txt").read_text("utf-8")


@pytest.fixture(scope="module")
def every_metric(run: Run) -> MetricTable:
    (found,) = tables(run, [metric.tag for metric in METRICS])
    return found


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("several", [False, True])
def test_nothing_is_clipped_at_any_width(
    table: MetricTable, every_metric: MetricTable, width: int, several: bool
) -> None:
    found = every_metric if several else table
    text = to_text([found], width)
    assert max(map(len, text.splitlines())) <= width
    # Rich marks what it cuts with an ellipsis; ours only stand between two published numbers.
    assert text.count("…") == sum(e.change.count("…") for r in found.rows for e in r.entries)
    words = text.split()
    for row in found.rows:
        for entry in row.entries:
            assert all(part.strip("[],") in text for part in entry.value.split(" ")), entry
            if entry.change:
                assert entry.change.split()[0] in words


def test_huge_numbers_wrap_instead_of_being_clipped(tmp_path: Path) -> None:
    slow = {"round-robin": 1.0, "tao": 1.0}
    cells = [CellId("w", name, 2, seed) for name in slow for seed in (0, 1)]
    manifest = {"label": "simulated", "cells": [c.as_dict() for c in cells]}
    with RunStore.open(tmp_path / "run", "", manifest) as store:
        for cell in cells:
            first = (123_456 + 10_000 * cell.seed if cell.scheduler == "tao" else 7 + cell.seed) * S
            writer = store.start(cell)
            writer.turn(turn(first_token=first, finished=first + S))
            writer.finish(first + S, {}, {})
    (found,) = tables(load_run(tmp_path / "run"), ["ttft_mean"] * 5)
    text = to_text([found], 80)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "128,456" in text


def test_the_best_is_marked_and_compared_with_the_best_of_the_others(table: MetricTable) -> None:
    best = {
        metric.tag: [row.name for row in table.rows if row.entries[i].best]
        for i, metric in enumerate(table.metrics)
    }
    routing = [name for name in SPEED if name != "tao"]
    assert best == {
        "latency_mean": ["tao"],
        "ttft_mean": ["thunderagent"],
        "decode_tps": ["thunderagent"],
        "cache_hit": ["tao"],
        "pause_wait_mean": routing,  # none of them ever holds a turn
    }
    figures = table.group.figures("latency_mean")
    assert figures["tao"].difference is not None
    assert figures["tao"].difference.against == "thunderagent"
    assert figures["round-robin"].difference is not None
    assert figures["round-robin"].difference.against == "tao"
    assert figures["round-robin"].difference.percent < -30


def test_every_row_says_what_its_figures_are(table: MetricTable) -> None:
    labels = [(row.name, row.label) for row in table.rows]
    assert labels == [*((name, "simulated") for name in SPEED), ("tao", "published")]
    published = table.rows[-1]
    assert [e.change for e in published.entries] == ["+8.3 %", "+12.9…29.9 %", "+4…7.8 %", "", ""]
    assert published.note == "vs best"


def test_captions_say_n_source_and_origin(table: MetricTable) -> None:
    text = " ".join(table.captions)
    assert "Figures simulated" in text
    assert "step times: interpolated tables, TP2 on H100" in text
    assert "cache hits: simulated blocks" in text
    assert "sessions: 12 generated" in text
    assert "n = 5 seeds" in text


def test_one_seed_has_no_interval_and_says_so(tmp_path: Path) -> None:
    (found,) = tables(load_run(write_run(tmp_path / "run", seeds=1)))
    assert "n = 1 seed: no interval" in " ".join(found.captions)
    assert all(
        entry.range == "" and "±" not in entry.value for r in found.rows for entry in r.entries
    )
    text = to_text([found], 80)
    assert "in brackets" not in text


def test_missing_partial_and_failed_cells_are_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", schedulers=["tao", "smetric"], seeds=2, planned_seeds=3)
    spec = {"schedulers": ["tao", "smetric"], "seeds": 3}
    with RunStore.open(path, "", {"label": "simulated", "spec": spec}) as store:
        with store.start(CellId("swe-bench-verified", "tao", 4, 2)) as writer:
            writer.turn(turn())
        failed = store.start(CellId("swe-bench-verified", "smetric", 4, 1))
        failed.fail(SimulationError("block freed twice", "report it"))
    run = load_run(path)
    (found,) = tables(run)
    text = "\n".join(found.captions)
    assert "n = tao 2, smetric 1 seeds; ± half the width" in text
    assert "A single seed gives no interval." in text
    assert (
        "Missing: smetric, seed 1: failed (SimulationError: block freed twice); "
        "tao, seed 2: partial; smetric, seed 2: missing." in text
    )
    figures = found.group.figures("latency_mean")
    assert figures["tao"].estimate is not None
    assert figures["tao"].estimate.n == 2
    assert figures["tao"].difference is not None
    assert figures["tao"].difference.n == 1, "only seed 0 is in both"
    assert to_text([found], 80)


def test_failed_turns_stand_apart(tmp_path: Path) -> None:
    cell = CellId("w", "tao", 2, 0)
    with RunStore.open(tmp_path / "run", "", {"label": "measured"}) as store:
        writer = store.start(cell)
        for record in golden.TURNS:
            writer.turn(record)
        for session in golden.SESSIONS:
            writer.session(session)
        writer.finish(20 * S, {}, {})
    (found,) = tables(load_run(tmp_path / "run"), ["ttft_mean", "decode_tps_steady"])
    text = " ".join(found.captions)
    assert (
        "Not finished, and in no timing figure: tao: 1 of 5 sessions failed, "
        "1 of 5 sessions context exceeded." in text
    )
    assert "25.0 % to 25.0 % of the makespan trimmed." in text
    assert "Figures measured" in text


def test_a_target_that_was_not_reached_is_said(tmp_path: Path) -> None:
    (found,) = tables(load_run(write_run(tmp_path / "run", seeds=1, workers=20, sessions=12)))
    text = " ".join(found.captions)
    assert "Target concurrency not reached: at most 60.0 % of 20 workers" in text


def test_baselines_can_be_chosen(run: Run) -> None:
    (found,) = tables(run, baselines=["round-robin"])
    gap = found.group.figures("latency_mean")["tao"].difference
    assert gap is not None
    assert gap.against == "round-robin"
    assert "the best of round-robin" in " ".join(found.captions)
    with pytest.raises(UsageError, match="no scheduler `nobody`"):
        tables(run, baselines=["nobody"])
    with pytest.raises(UsageError, match="no metric is called `speed`"):
        tables(run, ["speed"])


def test_variants_are_not_compared_with_their_own(tmp_path: Path) -> None:
    names = ["tao", "tao-no-cache", "smetric"]
    (found,) = tables(load_run(write_run(tmp_path / "run", schedulers=names, seeds=2)))
    against = {
        name: figure.difference.against
        for name, figure in found.group.figures("decode_tps").items()
        if figure.difference
    }
    assert against["tao"] == "smetric"
    assert against["tao-no-cache"] == "smetric"


def test_csv_holds_full_precision_and_published_figures(run: Run, table: MetricTable) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([table]))))
    ours = [row for row in rows if row["label"] == "simulated"]
    assert len(ours) == 5 * 5
    cells = run.cells[run.cells["scheduler"] == "tao"]
    (tao,) = (r for r in ours if r["scheduler"] == "tao" and r["metric"] == "latency_mean")
    assert float(tao["mean"]) == pytest.approx(cells["latency_mean"].mean(), rel=1e-12)
    assert (tao["n"], tao["best"], tao["against"]) == ("5", "1", "thunderagent")
    claims = {row["claim"]: row for row in rows if row["label"] == "published"}
    assert claims["tao.q32.sweverified.96.latency"]["low"] == "8.3"
    assert set(claims) == {
        "tao.q32.sweverified.96.latency",
        "tao.q32.sweverified.ttft",
        "tao.q32.sweverified.decode",
    }


def test_markdown_and_latex_escape_what_users_name(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", schedulers=["my_s|<b>&%", "tao"], seeds=1, workload="a|b_c")
    (found,) = tables(load_run(path))
    markdown = to_markdown(found)
    assert "my\\_s\\|\\<b\\>&%" in markdown
    head, *rest = (line for line in markdown.splitlines() if line.startswith("|"))
    assert all(line.replace("\\|", "").count("|") == head.count("|") for line in rest)
    latex = to_latex(found)
    assert r"my\_s\textbar{}\textless{}b\textgreater{}\&\%" in latex
    assert latex.count(r"\begin") == latex.count(r"\end") == 2
    body = latex[latex.index(r"\midrule") : latex.index(r"\bottomrule")]
    assert all(line.replace(r"\&", "").count("&") == 5 for line in body.splitlines()[1:])


WICKED = ("[1] \\x ~^|<>{}$%#&_", "* é ≥ 3 … ± 2 汉", "\x07\n")


def test_latex_keeps_its_structure_whatever_is_named() -> None:
    text = rows_to_latex(WICKED[0], ["a", "b"], [WICKED[:2], WICKED[1:], ("[+1, +2]", "*")])
    assert text.count(r"\begin{") == text.count(r"\end{")
    bare = re.sub(r"\\.", "", text)  # without escaped characters
    assert bare.count("{") == bare.count("}")
    assert not set("~^|<>") & set(text)
    lines = text.splitlines()
    rows = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
    assert [row.count(" & ") for row in rows] == [1, 1, 1]
    # After the end of a line, `[` and `*` would be taken for arguments of it.
    assert all(row.startswith("{}") for row in (rows[0], rows[1], rows[2]))
    assert text.replace("\n", "").isprintable()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex with booktabs")
def test_latex_compiles(table: MetricTable, tmp_path: Path) -> None:
    wicked = rows_to_latex(WICKED[0], WICKED[:2], [WICKED[:2], WICKED[1:]])
    source = [r"\documentclass{article}", r"\usepackage{booktabs}", r"\begin{document}"]
    source += [to_latex(table), wicked, r"\end{document}"]
    (tmp_path / "x.tex").write_text("\n".join(source), "utf-8")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "x.tex"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "x.pdf").stat().st_size > 1000


def test_published_figures_are_judged_with_ours(run: Run) -> None:
    (group,) = groups_of(run)
    judged = {one.claim.id: one for one in judge(group)}
    # tao is made 10 % faster than thunderagent, but pauses: see SPEED in synthetic.py.
    latency = judged["tao.q32.sweverified.96.latency"]
    assert latency.ours is not None
    gap = group.figures("latency_mean")["tao"].difference
    assert gap is not None
    assert (latency.ours.value, latency.ours.interval) == (gap.percent, gap.interval)
    assert latency.verdict == "direction only"
    assert judged["tao.q32.sweverified.ttft"].verdict == "not reproduced"
    strict = {one.claim.id: one.verdict for one in judge(group, follows_paper=["tao"])}
    assert strict["tao.q32.sweverified.ttft"] == "contradicted"


def test_a_claim_against_a_scheduler_that_was_not_run_is_not_testable(tmp_path: Path) -> None:
    path = write_run(
        tmp_path / "run", schedulers=["tao", "smetric"], seeds=2, workers=128, sessions=130
    )
    (group,) = groups_of(load_run(path))
    (latency,) = (one for one in judge(group) if one.claim.comparator == "thunderagent")
    assert latency.verdict == "not testable"
    assert latency.reason == "`thunderagent` is not in this run"
    assert latency.ours_text() == "n/a"


def test_percentage_points_and_levels_are_judged_in_their_unit(tmp_path: Path) -> None:
    from results.published import claims
    from results.verdicts import ours_for

    names = ["tao", "tao-no-decay"]
    (group,) = groups_of(load_run(write_run(tmp_path / "run", schedulers=names, seeds=2)))
    points = next(c for c in claims() if c.id == "tao.component.cache_decay.hit")
    found = ours_for(group, points)
    values = group.cells.set_index(["scheduler", "seed"])["cache_hit"]
    wanted = (values["tao"] - values["tao-no-decay"]).mean()
    assert found is not None
    assert found.value == pytest.approx(wanted, rel=1e-9)
    level = ours_for(group, next(c for c in claims() if c.id == "tao.ablation.full.decode"))
    assert level is not None
    assert level.value == pytest.approx(
        group.cells.query("scheduler == 'tao'")["decode_tps"].mean()
    )
    assert ours_for(group, replace(points, metric="unheard_of")) is None


def test_several_worker_counts_give_several_tables(tmp_path: Path) -> None:
    cells = [CellId("w", "tao", workers, 0) for workers in (8, 2, 4)]
    manifest = {"label": "simulated", "cells": [c.as_dict() for c in cells]}
    with RunStore.open(tmp_path / "run", "", manifest) as store:
        for cell in cells:
            write_cell(store, cell, facts=FACTS)
    found = tables(load_run(tmp_path / "run"))
    assert [t.group.workers for t in found] == [8, 2, 4], "in the order of the plan"
    assert "difference" not in " ".join(found[0].captions), "a single scheduler has no rival"
