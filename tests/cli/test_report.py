"""`agentsched report`: tables that fit, files where it says they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.command import agentsched, tiny_spec


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a recorded and a generated workload, under three schedulers."""
    folder = tmp_path_factory.mktemp("report")
    generated = {"name": "swe-bench-mini-short", "sessions": 6, "workers": 4}
    spec = tiny_spec(
        folder,
        workloads=[
            {"name": "tiny.jsonl", "workers": 4},
            {**generated, "published_as": "swe-bench-lite"},
        ],
        schedulers=["round-robin", "smetric", "tao"],
        seeds=[0, 1],
    )
    done = agentsched("run", spec, "-o", "out", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out"


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_keep_to_the_width(run: Path, columns: int) -> None:
    done = agentsched("report", run, "--format", "table", cwd=run, columns=columns)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    for words in ("task latency", "TTFT", "decode", "cache hit", "pause wait", "n = 2 seeds"):
        assert words in done.stdout
    for title in ("tiny, 4 workers", "swe-bench-mini-short, 4 workers"):
        assert title in done.stdout
    assert "sessions: 8 recorded" in " ".join(done.stdout.split())
    assert "sessions: 6 generated" in " ".join(done.stdout.split())
    assert done.stdout.count("simulated") >= 6, "every row says what it is"
    assert "*" in done.stdout, "the best value is marked"


def test_a_page_is_written_that_needs_nothing_else(run: Path) -> None:
    done = agentsched("report", run, cwd=run.parent)
    assert done.returncode == 0, done.stderr
    page = run / "report.html"
    assert f"written: {page}" in done.stdout
    html = page.read_text(encoding="utf-8")
    assert "<svg" in html
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!#)", html), "refers to nothing outside"
    assert str(run.parent.parent) not in html.replace(str(run), "")


def test_every_form_is_printed_or_written(run: Path, tmp_path: Path) -> None:
    for form, words in (("md", "| scheduler |"), ("csv", "run,workload,"), ("latex", r"\toprule")):
        printed = agentsched("report", run, "--format", form, cwd=tmp_path)
        assert printed.returncode == 0, printed.stderr
        assert words in printed.stdout
        written = agentsched("report", run, "--format", form, "-o", f"as-{form}", cwd=tmp_path)
        assert written.returncode == 0, written.stderr
        (file,) = (tmp_path / f"as-{form}").iterdir()
        assert f"written: as-{form}/{file.name}" in written.stdout
        assert words in file.read_text(encoding="utf-8")


def test_figures_alone(run: Path, tmp_path: Path) -> None:
    for form, head in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        done = agentsched("report", run, "--format", form, "-o", f"as-{form}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        files = sorted((tmp_path / f"as-{form}" / "figures").iterdir())
        assert len(files) == len(done.stdout.splitlines()) >= 12, "six pictures a table at least"
        assert all(file.read_bytes().startswith(head) for file in files)


def test_two_runs_in_one_report(run: Path, tmp_path: Path) -> None:
    done = agentsched("report", run, run, "-o", tmp_path / "both", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("out: tiny, 4 workers") == 2, "each says of which run it is"
    assert (tmp_path / "both/report.html").is_file()


def test_other_columns_and_baselines(run: Path, tmp_path: Path) -> None:
    done = agentsched(
        *("report", run, "--format", "table", "--metric", "tpot_p99", "--baseline", "smetric"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "TPOT" in done.stdout
    assert "best of smetric" in " ".join(done.stdout.split())
    for wrong in (["--metric", "nope"], ["--baseline", "nope"], ["--format", "pdf"]):
        assert agentsched("report", run, *wrong, cwd=tmp_path).returncode == 2


def test_the_figures_of_a_paper_stand_beside_ours(run: Path, tmp_path: Path) -> None:
    done = agentsched("report", run, "--format", "table", "--paper", "tao", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Figures of the tao paper (published) beside ours (simulated):" in done.stdout
    assert re.search(r"\d+ of the paper's \d+ figures belong to a setting", done.stdout)


def test_a_run_without_a_finished_cell_has_no_report(run: Path, tmp_path: Path) -> None:
    for name in ("manifest.json", "spec.yaml"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    done = agentsched("report", tmp_path, cwd=tmp_path)
    assert done.returncode == 1
    assert "no finished cell" in done.stderr
