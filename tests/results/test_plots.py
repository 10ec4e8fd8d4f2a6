from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread as plt_image

from results import plots
from results.drawing import looks, to_png, to_svg
from results.groups import groups_of
from results.run import Run
from results.store import load_run
from tests.results.synthetic import write_run

NAMES = ["round-robin", "cache-aware", "thunderagent-as-shipped", "tao"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("plots") / "run"
    return load_run(write_run(path, schedulers=NAMES, seeds=2))


def test_every_scheduler_looks_different_even_without_colour() -> None:
    many = [f"s{i}" for i in range(20)]
    found = looks(many)
    assert len({(look.colour, look.line, look.marker) for look in found.values()}) == 20
    few = list(looks(many[:4]).values())
    assert len({look.line for look in few}) == len({look.marker for look in few}) == 4


def test_the_distribution_shown_is_that_of_the_records(run: Run) -> None:
    (group,) = groups_of(run)
    figure = plots.distributions(group, run.turns, run.sessions)
    latency = figure.axes[0]
    assert [line.get_label() for line in latency.get_lines()] == NAMES
    own = run.sessions[run.sessions["scheduler"] == "tao"]
    seconds = (own["finished"] - own["started"]) / 1e9
    x, y = (np.asarray(values, np.float64) for values in latency.get_lines()[-1].get_data())
    assert (x.min(), x.max()) == (seconds.min(), seconds.max())
    assert (y.min(), y.max()) == (0, 1)


def test_bars_are_the_means_of_the_table(run: Run) -> None:
    (group,) = groups_of(run)
    figure = plots.main_metrics(group, ["latency_mean", "ttft_mean"])
    for axis, tag in zip(figure.axes, ["latency_mean", "ttft_mean"], strict=True):
        widths = [bar.get_width() for bar in axis.patches]  # type: ignore[attr-defined]
        means = [e.mean for n in NAMES if (e := group.figures(tag)[n].estimate) is not None]
        assert widths == pytest.approx(means)


def test_bars_of_an_ablation_are_the_differences_from_the_whole(tmp_path: Path) -> None:
    names = ["tao", "tao-no-cache", "smetric", "tao-bfd"]
    run = load_run(write_run(tmp_path / "run", schedulers=names, seeds=3))
    (group,) = groups_of(run)
    assert group.roots() == ["tao"]
    figure = plots.ablation(group, "tao", ["latency_mean", "cache_hit"])
    latency, cache = figure.axes[:2]
    assert [label.get_text() for label in latency.get_yticklabels()] == ["tao-no-cache", "tao-bfd"]
    widths = [bar.get_width() for bar in latency.patches]  # type: ignore[attr-defined]
    means = run.cells.groupby("scheduler")["latency_mean"].mean()
    wanted = [100 * (means["tao"] - means[n]) / means["tao"] for n in ("tao-no-cache", "tao-bfd")]
    assert widths == pytest.approx(wanted)
    assert cache.get_title(loc="left") == "cache hit"


def test_nothing_but_variants_is_held_against_the_whole(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "run", schedulers=["tao", "tao-no-cache"], seeds=2))
    (group,) = groups_of(run)
    assert group.against == "tao"
    gap = group.figures("latency_mean")["tao-no-cache"].difference
    assert gap is not None
    assert gap.against == "tao"
    assert group.figures("latency_mean")["tao"].difference is None


def test_no_label_is_clipped(run: Run) -> None:
    """Nothing touches the edge of any picture, so nothing is cut off there."""
    (group,) = groups_of(run)
    replicas = run.replicas[run.replicas["seed"] == 0]
    figures = [
        plots.distributions(group, run.turns, run.sessions),
        plots.main_metrics(group),
        plots.replicas_over_time(group, replicas, 0),
        plots.pareto(group),
        plots.by_prompt_size(group, run.turns),
        plots.against_workers([group], ["cache_hit", "decode_tps"]),
    ]
    for figure in figures:
        png = plt_image(io.BytesIO(to_png(figure)))
        edges = [png[0], png[-1], png[:, 0], png[:, -1]]
        assert all((edge == 1).all() for edge in edges)
        assert (png < 0.9).any()


def test_inline_svg_takes_the_colour_of_the_page(run: Run) -> None:
    (group,) = groups_of(run)
    figure = plots.pareto(group)
    inline = to_svg(figure, inline="x")
    assert inline.startswith("<svg")
    assert "currentColor" in inline
    assert "#010203" not in inline
    head = inline[: inline.index(">")]
    assert "viewBox" in head
    assert "width=" not in head
    alone = to_svg(plots.pareto(group))
    assert "currentColor" not in alone
    assert "#010203" not in alone


def test_long_runs_make_light_figures() -> None:
    x = np.arange(100_003, dtype=np.float64)
    thin_x, thin_y = plots._thin(x, 2 * x)
    assert len(thin_x) <= 400
    assert thin_y == pytest.approx(2 * thin_x)
