from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.image import imread

from agentsched import RunDirectoryError, SimulationError, UsageError
from results.cells import CellId
from results.records import SessionRecord
from results.report import FORMATS, write_report
from results.sections import sections
from results.store import RunStore, load_run
from results.timelines import PER_CELL, timelines
from tests.results.synthetic import FACTS, S, turn, write_cell, write_run

EVIL = "<script>alert('gotcha')</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which scheduler, workload and tasks are called like an attack; a failed cell too."""
    path = tmp_path_factory.mktemp("report") / "run"
    names = ["smetric", EVIL, "tao"]
    cells = [CellId(EVIL, name, w, seed) for w in (2, 4) for name in names for seed in (0, 1)]
    manifest = {"label": "simulated", "spec": {"a": EVIL}, "cells": [c.as_dict() for c in cells]}
    with RunStore.open(path, EVIL, manifest) as store:
        for cell in cells[:-2]:
            write_cell(store, cell, name=EVIL, turns=4)
        with store.start(cells[-2]) as writer:
            writer.turn(turn())
        store.start(cells[-1]).fail(SimulationError(EVIL, "report it"))
    return path


@pytest.fixture(scope="module")
def out(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    paths = write_report(load_run(folder), out, FORMATS)
    assert paths[0] == out / "report.html"
    assert sorted(paths) == sorted(path for path in out.rglob("*") if path.is_file())
    return out


def test_the_page_is_self_contained_and_escapes_everything(out: Path) -> None:
    page = (out / "report.html").read_text("utf-8")
    assert EVIL not in page
    assert html.escape(EVIL, quote=False).replace("'", "&#39;") in page
    # Nothing is loaded from anywhere: every reference is to a place in the page.
    references = re.findall(r"""(?:src|href|url|@import)\s*[=(]\s*["']?([^"')\s>]+)""", page)
    assert references
    assert all(target.startswith("#") for target in references)
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", page))
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_the_page_says_what_is_missing(out: Path) -> None:
    page = html.unescape((out / "report.html").read_text("utf-8"))
    assert "10 of 12 cells done" in page
    assert "tao+4w+s0: partial" in page
    assert f"tao+4w+s1: failed (SimulationError: {EVIL})" in page
    markdown = (out / "report.md").read_text("utf-8")
    assert "## Missing" in markdown


def test_errors_are_counted_by_scheduler_and_message(tmp_path: Path) -> None:
    cell = CellId("w", "tao", 2, 0)
    with RunStore.open(tmp_path / "run", "", {"label": "measured"}) as store:
        writer = store.start(cell)
        for index in range(3):
            writer.turn(turn("a", index, status="failed", error="reset | by peer"))
        writer.turn(turn("b", 0, status="rejected", error=None))
        for tokens in (41_000, 42_000):
            writer.turn(turn("d", 0, status="too_long", error=f"{tokens} tokens"))
        writer.turn(turn("c", 0))
        writer.finish(10**10, {}, {})
    run = load_run(tmp_path / "run")
    (section,) = sections([run])
    assert section.errors == [
        ("tao", "failed", "reset | by peer", 3),
        ("tao", "rejected", "", 1),
        ("tao", "too_long", "41000 tokens (and similar)", 2),
    ]
    write_report(run, tmp_path / "out", ["md", "html"])
    text = (tmp_path / "out" / "report.md").read_text("utf-8")
    assert "| tao | failed | reset \\| by peer | 3 |" in text
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert '<td class="words">reset | by peer</td>' in page


def test_ids_are_unique_and_references_resolve(out: Path) -> None:
    page = (out / "report.html").read_text("utf-8")
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', page)) <= set(ids)


def test_figures_are_valid_svg_and_png(out: Path) -> None:
    stems = {path.stem for path in (out / "figures").iterdir()}
    kinds = {stem.split("-", 1)[1] for stem in stems}
    assert kinds == {
        *("metrics", "distributions", "pareto", "prompt-size", "pauses", "replicas", "workers")
    }
    for stem in stems:
        root = ElementTree.parse(out / "figures" / f"{stem}.svg").getroot()
        assert root.tag.endswith("svg")
        assert (out / "figures" / f"{stem}.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_run_gives_the_same_report(folder: Path, out: Path, tmp_path: Path) -> None:
    write_report(load_run(folder), tmp_path, ["html", "csv"])
    for name in ("report.html", "metrics.csv"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes(), name


def test_several_runs_in_one_report(folder: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", schedulers=["tao"], seeds=1, label="measured")
    runs = [load_run(folder), load_run(other)]
    assert [s.group.label for s in sections(runs)] == ["simulated", "simulated", "measured"]
    (page, *_) = write_report(runs, tmp_path / "out", ["md"])
    text = page.read_text("utf-8")
    assert "# agentsched: run, other" in text
    assert text.count("*simulated*") == 3 + 2, "at 4 workers tao has no finished cell"
    assert text.count("*measured*") == 1
    assert "### other: swe-bench-verified" in text
    assert "### run: " in text


def test_what_cannot_be_reported_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", schedulers=["tao"], seeds=0, planned_seeds=2)
    with pytest.raises(RunDirectoryError, match="no finished cell"):
        write_report(load_run(path), tmp_path / "out")
    with pytest.raises(UsageError, match="no report format `pdf`"):
        write_report(load_run(path), tmp_path / "out", ["pdf"])
    (tmp_path / "file").write_text("")
    done = load_run(write_run(tmp_path / "done", schedulers=["tao"], seeds=1))
    with pytest.raises(RunDirectoryError, match="cannot write the report"):
        write_report(done, tmp_path / "file", ["csv"])


def test_timelines_are_a_sample_with_times_from_the_start_of_the_session(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", schedulers=["tao"], seeds=1, sessions=80)
    run = load_run(path)
    (section,) = sections([run])
    (cell,) = timelines(section.group, run.turns, run.sessions)
    assert (cell["scheduler"], cell["seed"], cell["total"]) == ("tao", 0, 80)
    assert len(cell["sessions"]) == PER_CELL
    latencies = [session["latency"] for session in cell["sessions"]]
    durations = (run.sessions["finished"] - run.sessions["started"]) / 1e9
    assert latencies == sorted(latencies)
    assert latencies[0] == pytest.approx(durations.min(), abs=1e-3)
    assert latencies[-1] == pytest.approx(durations.max(), abs=1e-3)
    for session in cell["sessions"]:
        assert session["turns"][0][0] == 0
        assert len(session["turns"]) == 6
        assert session["turns"][-1][3] == pytest.approx(session["latency"], abs=1e-3)


def test_transfers_are_in_the_timelines(tmp_path: Path) -> None:
    times = {"dispatched": S, "first_token": 5 * S, "finished": 7 * S}
    legs = {"prefill_replica": "p0", "prefilled": 2 * S, "kv_sent": 3 * S, "kv_received": 4 * S}
    with RunStore.open(tmp_path / "run", "", {"label": "simulated"}) as store:
        writer = store.start(CellId("w", "ampd", 2, 0))
        writer.turn(turn("a", 0, **times, **legs))
        writer.turn(turn("a", 1, arrived=8 * S, dispatched=8 * S, first_token=9 * S))
        writer.session(SessionRecord("a", "w", "generated", None, "finished", 0, 9 * S, 2, 2))
        writer.finish(10 * S, {}, {})
    run = load_run(tmp_path / "run")
    (section,) = sections([run])
    (cell,) = timelines(section.group, run.turns, run.sessions)
    two, one = cell["sessions"][0]["turns"]
    assert two[:5] == [0.0, 1.0, 5.0, 7.0, "r0"]
    assert two[10:] == ["ok", "p0", 2.0, 3.0, 4.0]
    assert one[10:] == ["ok"], "nothing more of a turn in one leg"


def test_every_picture_says_what_its_figures_are(tmp_path: Path) -> None:
    """External arms of a measured run, and cells that must not be used, are named as such."""
    path = write_run(
        tmp_path / "run", schedulers=["tao", "tao-no-cache"], seeds=1, label="measured"
    )
    with RunStore.open(path, "schedulers: given\n", load_run(path).manifest) as store:
        facts = {**FACTS, "invalid": "the client was saturated"}
        cell = CellId("swe-bench-verified", "vllm-router", 4, 0)
        summary = write_cell(store, cell, facts=facts)
        place = path / "cells" / cell.name / "summary.json"
        place.write_text(json.dumps({**summary, "label": "external"}))
    run = load_run(path)
    (section,) = sections([run])
    assert section.group.kind == "measured; vllm-router external"
    for picture in section.figures:
        assert "measured; vllm-router external" in picture.caption
        title = picture.figure.get_suptitle()
        assert title.endswith("; measured; vllm-router external"), picture.name
        assert "4 workers" in title or picture.name == "workers"
    assert "ablation-tao" in {picture.name for picture in section.figures}
    (row,) = (row for row in section.table.rows if row.name == "vllm-router")
    assert (row.label, row.note) == ("external", "measured")
    used = "Not to be used, the run was not what it says: vllm-router, seed 0: the client was satur"
    assert any(line.startswith(used) for line in section.table.captions)
    write_report(run, tmp_path / "out", ["html", "csv"])
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert '<span class="label">measured; vllm-router external</span>' in page
    lines = (tmp_path / "out" / "metrics.csv").read_text("utf-8").splitlines()
    assert all(",external," in line for line in lines if ",vllm-router,external" in line)
    assert any(",vllm-router,external,ttft_mean," in line for line in lines)


def test_a_large_run_makes_a_light_page(tmp_path: Path) -> None:
    """10,000 sessions; what is drawn and listed of them does not grow with their number."""
    path = write_run(tmp_path / "run", seeds=1, sessions=2000, turns=2, workers=96)
    run = load_run(path)
    assert len(run.sessions) == 10_000
    (page,) = write_report(run, tmp_path / "out", ["html"])
    assert page.stat().st_size < 20e6


PROBE = """
<script>
window.addEventListener("load", () => {
  const table = document.querySelector("table.sortable");
  const names = () => [...table.tBodies[0].rows].map((row) => row.cells[0].dataset.value);
  const seen = { before: names() };
  table.tHead.rows[0].cells[1].click();
  seen.up = names();
  table.tHead.rows[0].cells[1].click();
  seen.down = names();
  const drill = document.querySelector("details.drill");
  drill.addEventListener("toggle", () => setTimeout(() => {
    const [cell, session] = drill.querySelectorAll("select");
    seen.cells = cell.options.length;
    cell.value = 1;
    cell.dispatchEvent(new Event("change"));
    session.value = 2;
    session.dispatchEvent(new Event("change"));
    seen.session = session.options[2].textContent;
    seen.bars = drill.querySelectorAll(".timeline rect").length;
    const decode = () =>
      Number(drill.querySelector(".timeline rect.decode").getAttribute("width"));
    seen.transfers = drill.querySelectorAll(".timeline rect.transfer").length;
    seen.width = decode();
    drill.querySelector("input").click();
    seen.stretched = decode();
    seen.overflow = document.documentElement.scrollWidth - window.innerWidth;
    seen.turns = drill.querySelectorAll(".turns tbody tr").length;
    const result = document.createElement("pre");
    result.id = "seen";
    result.textContent = JSON.stringify(seen);
    document.body.append(result);
  }, 50));
  drill.open = true;
});
</script></body>"""


needs_browser = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="needs chromium on the path"
)


def browse(page: Path, profile: Path, *options: str) -> str:
    """What a headless browser prints of a page."""
    done = subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={profile}", "--virtual-time-budget=5000", *options),
            f"file://{page}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


@needs_browser
def test_a_screenshot_in_light_and_in_dark(out: Path, tmp_path: Path) -> None:
    for name, scheme, paper in (("light", 1, 1.0), ("dark", 0, 0.083)):
        browse(
            out / "report.html",
            tmp_path / name,
            *(f"--screenshot={tmp_path / name}.png", "--window-size=600,900"),
            f"--blink-settings=preferredColorScheme={scheme}",
        )
        picture = imread(tmp_path / f"{name}.png")
        assert picture.shape[:2] == (900, 600)
        assert picture[2, 2, 0] == pytest.approx(paper, abs=0.01), "the colour of the page"
        ink = abs(picture[:, :, :3] - picture[2, 2, :3]).max(axis=2)
        assert ink.max() > 0.7, "text stands out"
        assert (ink[:, :4] < 0.01).all(), "nothing touches the left edge"


@needs_browser
def test_in_a_browser_tables_sort_and_sessions_open(out: Path, tmp_path: Path) -> None:
    page = (out / "report.html").read_text("utf-8").replace("</body>", PROBE)
    (tmp_path / "probe.html").write_text(page, "utf-8")
    text = browse(tmp_path / "probe.html", tmp_path, "--dump-dom", "--window-size=500,900")
    found = re.search(r'<pre id="seen">(.*?)</pre>', text, re.DOTALL)
    assert found is not None, "a script of the page failed"
    seen = json.loads(html.unescape(found[1]))
    assert sorted(seen["up"]) == sorted(seen["before"])
    # smetric is made slower than tao, the other as fast as it is written: see synthetic.SPEED.
    assert seen["up"].index("tao") < seen["up"].index("smetric")
    assert seen["down"] == seen["up"][::-1]
    assert seen["cells"] == 3
    assert seen["turns"] == 4
    assert seen["bars"] >= 4 * 2 + 3 + 4, "prefill and decode of 4 turns, 3 tools, 4 replica bars"
    assert seen["transfers"] == 1
    assert seen["stretched"] > seen["width"], "wider with the time of tools cut short"
    assert seen["overflow"] <= 0, "a phone scrolls tables and pictures, not the page"
    assert EVIL in seen["session"], "shown as text"
