from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import agentsched
from agentsched import RunDirectoryError, SchedulerError
from results.cells import CellId, canonical_json
from results.records import DecisionRecord, Label, ReplicaRecord, SessionRecord, TurnRecord
from results.store import RunStore, differences, load_run
from results.writer import CellWriter
from tests.results import golden
from tests.results.synthetic import FACTS, S, turn, write_cell, write_run

CELL = CellId("w", "tao", 2, 0)
MANIFEST: dict[str, Any] = {"label": "simulated", "spec": {"a": 1}, "cells": [CELL.as_dict()]}


def finish_golden(writer: CellWriter) -> dict[str, Any]:
    for record in golden.TURNS:
        writer.turn(record)
    for session in golden.SESSIONS:
        writer.session(session)
    for sample in golden.REPLICAS:
        writer.replica(sample)
    writer.decision(DecisionRecord(5, "turn_arrived", "Route", "a", "a/0", "r0", "least loaded"))
    return writer.finish(20 * S, {"plans": 3}, golden.FACTS, {"planner_cpu_s": 0.5})


def test_names_are_readable_and_stay_inside_the_run(tmp_path: Path) -> None:
    assert CellId("swe-bench-verified", "tao", 96, 0).name == "swe-bench-verified+tao+96w+s0"
    for wicked in ("../../etc", "/etc/passwd", "..", "", "a/b", "a\\b", "x\0y", "naïve", "a b"):
        name = CellId(wicked, wicked, 1, 0).name
        path = tmp_path / "cells" / name
        assert path.resolve().parent == tmp_path / "cells"
        assert name.isascii()
    assert len(CellId("x" * 500, "y" * 500, 1, 0).name) < 255


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(max_size=12), min_size=2, max_size=2, unique=True))
def test_different_cells_have_different_names(names: list[str]) -> None:
    first, second = names
    assert CellId(first, "s", 1, 0).name != CellId(second, "s", 1, 0).name
    assert CellId("w", first, 1, 0).name != CellId("w", second, 1, 0).name


def test_a_finished_cell_reads_back_as_written(tmp_path: Path) -> None:
    with RunStore.open(tmp_path / "run", "a: 1\n", MANIFEST) as store:
        assert not store.is_done(CELL)
        summary = finish_golden(store.start(CELL))
        assert store.is_done(CELL)
    run = load_run(tmp_path / "run")
    assert (run.path / "spec.yaml").read_text() == "a: 1\n"
    assert [s.status for s in run.states] == ["done"]
    assert list(run.turns["session"]) == [t.session for t in golden.TURNS]
    own = run.turns[list(asdict(golden.TURNS[0]))].astype(object)
    for (_, row), record in zip(own.iterrows(), golden.TURNS, strict=True):
        for name, value in asdict(record).items():
            assert pd.isna(row[name]) if value is None else row[name] == value, name
    assert set(run.turns["scheduler"]) == {"tao"}
    assert len(run.sessions) == len(golden.SESSIONS)
    assert len(run.replicas) == len(golden.REPLICAS)
    assert run.cells.loc[0, "ttft_mean"] == summary["metrics"]["ttft_mean"]["value"] == 2.2
    assert [d["why"] for d in run.decisions(CELL)] == ["least loaded"]
    timing = json.loads((run.path / "cells" / CELL.name / "timing.json").read_text())
    assert timing["planner_cpu_s"] == 0.5
    assert set(timing) == {"planner_cpu_s", "wall_s"}


def test_the_public_face_exports_load_run() -> None:
    assert agentsched.load_run is load_run


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with RunStore.open(tmp_path / name, "", MANIFEST) as store:
            finish_golden(store.start(CELL, clock=iter(range(10**6)).__next__))
    kinds = ["summary.json", "decisions.jsonl.gz"]
    kinds += [f"{kind}.parquet" for kind in ("turns", "sessions", "replicas")]
    for kind in kinds:
        one, two = (tmp_path / n / "cells" / CELL.name / kind for n in ("one", "two"))
        assert one.read_bytes() == two.read_bytes(), kind
    summary = (tmp_path / "one" / "cells" / CELL.name / "summary.json").read_text()
    assert "wall" not in summary
    assert str(tmp_path) not in summary


def test_canonical_json_hides_the_order_of_addition_and_of_keys() -> None:
    assert canonical_json({"b": 0.1 + 0.2, "a": 1}) == canonical_json({"a": 1, "b": 0.3})
    assert json.loads(canonical_json({"x": float("nan"), "y": [float("inf")]})) == {
        "x": None,
        "y": [None],
    }


texts = st.text(max_size=8)
times = st.integers(0, 2**50)


@settings(max_examples=60, deadline=None)
@given(texts, texts, st.none() | texts, st.none() | times, st.floats(0, 1e9), st.booleans())
def test_hand_written_lines_are_json(
    tmp_path_factory: pytest.TempPathFactory,
    session: str,
    workload: str,
    text: str | None,
    moment: int | None,
    seconds: float,
    flag: bool,
) -> None:
    record = turn(
        session, workload=workload, replica=text, prefill_replica=text, error=text,
        dispatched=moment, first_token=moment, cached_tokens=moment, tool_end=moment,
        prefilled=moment, kv_sent=moment, kv_received=moment,
        longest_gap=moment, tool_s=seconds, wait_s=seconds, visible=flag, held=not flag,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("lines")
    with CellWriter(folder, CELL, "simulated") as writer:
        writer.turn(record)
    (line,) = (folder / "cells" / CELL.name / "events.jsonl").read_text().splitlines()
    assert json.loads(line) == asdict(record)
    shutil.rmtree(folder)


def test_records_reach_the_disk_within_a_second(tmp_path: Path) -> None:
    now = [100.0]
    writer = CellWriter(tmp_path, CELL, "measured", lambda: now[0])
    log = tmp_path / "cells" / CELL.name / "events.jsonl"
    writer.turn(turn())
    assert log.read_text() == ""
    now[0] += 0.5
    writer.tick()
    assert len(log.read_text().splitlines()) == 1
    writer.turn(turn("b"))
    now[0] += 0.6
    writer.replica(golden.REPLICAS[0])
    assert len(log.read_text().splitlines()) == 2
    writer.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from results.cells import CellId
from results.store import RunStore
from tests.results.synthetic import turn, write_cell

store = RunStore.open(sys.argv[1], "a: 1\\n", {"label": "simulated", "spec": {"a": 1},
    "cells": [CellId("w", "tao", 2, seed).as_dict() for seed in (0, 1, 2)]})
write_cell(store, CellId("w", "tao", 2, 0))
clock = iter(range(10**9)).__next__
writer = store.start(CellId("w", "tao", 2, 1), clock)
for index in range(1000):
    writer.turn(turn("victim", index))
writer._files["turns"].write(b'{"session":"victim","turn":1000,"wor')
writer.flush()
print("ready", flush=True)
signal.pause()
"""


def test_a_killed_writer_leaves_a_readable_directory_that_can_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], cwd=root, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(RunDirectoryError, match=f"process {process.pid}"):
            RunStore.open(path, "a: 1\n", {"label": "simulated", "spec": {"a": 1}})
        os.kill(process.pid, signal.SIGKILL)
    run = load_run(path)
    assert [s.status for s in run.states] == ["done", "partial", "missing"]
    assert list(run.partial["turn"]) == list(range(1000))
    assert "victim" not in set(run.turns["session"])
    assert run.cells["ttft_mean"].notna().tolist() == [True, False, False]

    with RunStore.open(path, "a: 1\n", {"label": "simulated", "spec": {"a": 1}}) as store:
        before = (path / "cells" / "w+tao+2w+s0" / "summary.json").stat().st_mtime_ns
        for state in store.states():
            if not store.is_done(state.cell):
                write_cell(store, state.cell)
    run = load_run(path)
    assert [s.status for s in run.states] == ["done"] * 3
    assert [s.attempts for s in run.states] == [0, 1, 0]
    assert (path / "cells" / "w+tao+2w+s0" / "summary.json").stat().st_mtime_ns == before
    assert "victim" not in set(run.turns["session"])
    assert (path / "cells" / "w+tao+2w+s1.partial-1" / "events.jsonl").exists()


def test_a_writer_that_outlives_its_run_never_touches_the_new_cell(tmp_path: Path) -> None:
    old = CellWriter(tmp_path, CELL, "simulated")
    old.turn(turn("stale"))
    new = CellWriter(tmp_path, CELL, "simulated")
    new.turn(turn("fresh"))
    old.finish(S, {}, FACTS)
    folder = tmp_path / "cells" / CELL.name
    assert not (folder / "summary.json").exists()
    new.close()
    lines = (folder / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["session"] for line in lines] == ["fresh"]
    aside = folder.with_name(f"{folder.name}.partial-1")
    assert (aside / "summary.json").exists()
    third = CellWriter(tmp_path, CELL, "simulated")
    third.close()
    assert folder.with_name(f"{folder.name}.partial-2").is_dir()


def test_a_forked_child_does_not_hold_the_lock_of_a_dead_parent(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\n"
        "from results.store import RunStore\n"
        f"RunStore.open({str(tmp_path / 'run')!r}, '', {{'label': 'simulated'}})\n"
        "if os.fork() == 0:\n"
        "    time.sleep(30)\n"
        "    os._exit(0)\n"
        "print('ready', flush=True)\n"
        "time.sleep(30)\n"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            deadline = time.monotonic() + 10
            while True:  # the child may still be between the fork and closing its copy
                try:
                    RunStore.open(tmp_path / "run", "", {"label": "simulated"}).close()
                    break
                except RunDirectoryError:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_failed_cell_says_why_and_is_not_done(tmp_path: Path) -> None:
    with RunStore.open(tmp_path / "run", "", MANIFEST) as store:
        writer = store.start(CELL)
        writer.turn(turn())
        writer.fail(SchedulerError("tao", "turn_arrived", 2 * S, "names an unknown replica `r9`"))
        assert not store.is_done(CELL)
        (state,) = store.states()
    assert state.status == "failed"
    assert state.error == (
        "SchedulerError: scheduler `tao` at 2.000000 s, on turn_arrived: "
        "names an unknown replica `r9`"
    )
    run = load_run(tmp_path / "run")
    assert len(run.partial) == 1
    assert run.cells.loc[0, "error"] == state.error
    assert len(run.turns) == 0


def test_another_spec_is_refused_with_what_differs(tmp_path: Path) -> None:
    spec = {"workers": [96], "sim": {"noise": 0.1, "seed": 1}}
    RunStore.open(tmp_path, "x", {"label": "simulated", "spec": spec}).close()
    other = {"workers": [96, 128], "sim": {"noise": 0.2, "seed": 1}}
    with pytest.raises(RunDirectoryError) as caught:
        RunStore.open(tmp_path, "x", {"label": "simulated", "spec": other})
    assert "sim.noise: 0.1 -> 0.2; workers: [96] -> [96, 128]" in caught.value.message
    with pytest.raises(RunDirectoryError, match="label: simulated -> measured"):
        RunStore.open(tmp_path, "x", {"label": "measured", "spec": spec})
    RunStore.open(tmp_path, "y", {"label": "simulated", "spec": dict(reversed(spec.items()))})


def test_without_a_resolved_spec_the_text_decides(tmp_path: Path) -> None:
    RunStore.open(tmp_path, "a: 1\nb: 2\n", {"label": "simulated"}).close()
    with pytest.raises(RunDirectoryError, match=r"`b: 2`; `b: 3` \(new\)"):
        RunStore.open(tmp_path, "a: 1\nb: 3\n", {"label": "simulated"})


def test_differences_of_nested_specs() -> None:
    assert differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 1}, "c": 2}) == []
    assert differences({"a": 1}, {"b": 1}) == ["a: 1 -> null", "b: null -> 1"]
    assert differences({"a": {"b": 1}}, {"a": 5}) == ['a: {"b": 1} -> 5']
    assert differences({"a": [{"b": 1}, 7]}, {"a": [{"b": 2}, 7]}) == ["a.0.b: 1 -> 2"]
    assert differences({"a": [1]}, {"a": [1, 2]}) == ["a: [1] -> [1, 2]"]


def test_a_second_run_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    first = RunStore.open(tmp_path, "", MANIFEST)
    with pytest.raises(RunDirectoryError, match=f"in use by another run .process {os.getpid()}"):
        RunStore.open(tmp_path, "", MANIFEST)
    RunStore.read(tmp_path)
    first.close()
    RunStore.open(tmp_path, "", MANIFEST).close()


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunDirectoryError, match=r"holds other files \(thesis.tex\)"):
        RunStore.open(tmp_path, "", MANIFEST)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(RunDirectoryError, match=r"File exists|Not a directory"):
        RunStore.open(tmp_path / "thesis.tex", "", MANIFEST)
    with pytest.raises(RunDirectoryError, match="no run is stored here"):
        load_run(tmp_path)
    with pytest.raises(RunDirectoryError, match="no run is stored here"):
        load_run(tmp_path / "nowhere")


def test_another_layout_is_refused(tmp_path: Path) -> None:
    RunStore.open(tmp_path, "", MANIFEST).close()
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"layout": 0}))
    for attempt in (lambda: load_run(tmp_path), lambda: RunStore.open(tmp_path, "", MANIFEST)):
        with pytest.raises(RunDirectoryError) as error:
            attempt()
        said = f"{tmp_path}: layout 0, but this version ({agentsched.__version__}) reads layout 1"
        assert error.value.message == said
        assert "run it again" in error.value.remedy
    old = {"layout": 7, "versions": {"agentsched": "9.9"}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | old))
    with pytest.raises(RunDirectoryError) as error:
        load_run(tmp_path)
    assert "written by agentsched 9.9" in error.value.message
    assert "agentsched 9.9" in error.value.remedy


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", schedulers=["tao"], seeds=1)
    cell = CellId("swe-bench-verified", "tao", 4, 0)
    folder = path / "cells" / cell.name
    (folder / "turns.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(RunDirectoryError, match=r"turns\.parquet: damaged"):
        _ = load_run(path).turns
    (folder / "summary.json").write_text("{")
    with pytest.raises(RunDirectoryError, match=r"summary\.json: damaged"):
        load_run(path)
    (folder / "summary.json").unlink()
    with CellWriter(tmp_path, cell, "simulated") as writer:
        for index in range(5):
            writer.turn(turn("a", index))
    lines = (tmp_path / "cells" / cell.name / "events.jsonl").read_text().splitlines(keepends=True)
    (folder / "events.jsonl").write_text("".join([*lines[:2], "garbage\n", *lines[3:]]))
    with pytest.raises(RunDirectoryError, match=r"events\.jsonl, line 3: damaged"):
        _ = load_run(path).partial


def test_a_done_cell_keeps_each_record_once(tmp_path: Path) -> None:
    with RunStore.open(tmp_path, "", MANIFEST) as store:
        finish_golden(store.start(CELL))
    names = {path.name for path in (tmp_path / "cells" / CELL.name).iterdir()}
    assert names == {
        *("cell.json", "summary.json", "timing.json", "decisions.jsonl.gz"),
        *("turns.parquet", "sessions.parquet", "replicas.parquet"),
    }


@pytest.mark.parametrize(
    "last", ["turns.parquet", "replicas.parquet", "decisions.jsonl.gz", "summary.json"]
)
def test_killed_while_it_finishes_a_cell_loses_no_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """The process dies when `last` was just written whole: logs go only after the summary."""
    sync, unlink = os.fsync, os.unlink
    written = tmp_path / "cells" / CELL.name / last

    def dies(descriptor: int) -> None:
        sync(descriptor)
        if written.exists():
            raise KeyboardInterrupt

    def no_unlink(path: str, **more: Any) -> None:
        raise KeyboardInterrupt

    if last == "summary.json":
        monkeypatch.setattr(os, "unlink", no_unlink)
    else:
        monkeypatch.setattr(os, "fsync", dies)
    with RunStore.open(tmp_path, "", MANIFEST) as store:
        writer = store.start(CELL)
        with pytest.raises(KeyboardInterrupt):
            finish_golden(writer)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "unlink", unlink)
    run = load_run(tmp_path)
    done = last == "summary.json"
    assert [state.status for state in run.states] == ["done" if done else "partial"]
    kept = run.turns if done else run.partial
    assert list(kept["session"]) == [t.session for t in golden.TURNS]
    assert [d["why"] for d in run.decisions(CELL)] == ["least loaded"]
    with RunStore.open(tmp_path, "", MANIFEST) as store:
        assert store.is_done(CELL) == done
        if not done:
            finish_golden(store.start(CELL))
    again = load_run(tmp_path)
    assert list(again.turns["session"]) == [t.session for t in golden.TURNS]
    assert again.partial.empty


def test_a_run_of_before_transfers_were_recorded_reads_on(tmp_path: Path) -> None:
    """Cells of an earlier version: plain logs beside the tables, no times of transfers."""
    with RunStore.open(tmp_path, "", MANIFEST) as store:
        finish_golden(store.start(CELL))
    folder = tmp_path / "cells" / CELL.name
    later = ["prefilled", "kv_sent", "kv_received"]
    old = parquet.read_table(folder / "turns.parquet").drop_columns(later)
    parquet.write_table(old, folder / "turns.parquet")
    log = gzip.decompress((folder / "decisions.jsonl.gz").read_bytes())
    (folder / "decisions.jsonl").write_bytes(log)
    (folder / "decisions.jsonl.gz").unlink()
    run = load_run(tmp_path)
    assert run.turns[later].isna().all().all()
    assert list(run.turns["session"]) == [t.session for t in golden.TURNS]
    assert [d["why"] for d in run.decisions(CELL)] == ["least loaded"]
    (folder / "summary.json").unlink()
    line = {k: v for k, v in asdict(golden.TURNS[0]).items() if k not in later}
    (folder / "events.jsonl").write_text(json.dumps(line) + "\n")
    assert load_run(tmp_path).partial[later].isna().all().all()


def test_a_damaged_decision_log_is_named(tmp_path: Path) -> None:
    with RunStore.open(tmp_path, "", MANIFEST) as store:
        finish_golden(store.start(CELL))
    packed = tmp_path / "cells" / CELL.name / "decisions.jsonl.gz"
    whole = packed.read_bytes()
    for bad in (whole[:-9], b"no gzip", gzip.compress(b"{]\n"), gzip.compress(b"\xff\n")):
        packed.write_bytes(bad)
        with pytest.raises(RunDirectoryError, match=r"decisions\.jsonl\.gz"):
            list(load_run(tmp_path).decisions(CELL))


def test_titles_say_the_load() -> None:
    titles = [CellId("w", "tao", workers, 3).title for workers in (96, 1, 0)]
    assert titles == [
        "w, tao, 96 workers, seed 3",
        "w, tao, 1 worker, seed 3",
        "w, tao, open loop, seed 3",
    ]


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("cells/{cell}/summary.json", "{}", "damaged (no `cell`)"),
        ("cells/{cell}/summary.json", "[]", "damaged (not an object)"),
        ("cells/{cell}/cell.json", '{"workload": 1}', "damaged (names no cell)"),
        (
            "cells/{cell}/summary.json",
            '{"cell":{},"makespan_s":1,"counters":{},"facts":{},"metrics":{"a":{"n":1,"value":"x"}}}',
            "metric `a`",
        ),
        (
            "manifest.json",
            '{"layout": 1, "label": "simulated", "workloads": {"a": 1}}',
            "`workloads` does not say",
        ),
        ("manifest.json", '{"layout": 1}', "damaged (a manifest needs a label"),
        ("manifest.json", '{"layout": 1, "label": "simulated", "cells": 3}', "`cells` is no list"),
        ("manifest.json", '{"layout": 1, "label": "simulated", "cells": [{}]}', "names no cell"),
    ],
)
def test_files_that_lack_what_they_must_hold_are_named(
    tmp_path: Path, file: str, content: str, words: str
) -> None:
    path = write_run(tmp_path / "run", schedulers=["tao"], seeds=1)
    damaged = path / file.format(cell=CellId("swe-bench-verified", "tao", 4, 0).name)
    damaged.write_text(content)
    with pytest.raises(RunDirectoryError) as caught:
        load_run(path)
    assert caught.value.message.startswith(f"{damaged}: ")
    assert words in caught.value.message


def test_a_table_that_is_gone_is_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", schedulers=["tao"], seeds=1)
    cell = CellId("swe-bench-verified", "tao", 4, 0)
    (path / "cells" / cell.name / "turns.parquet").unlink()
    with pytest.raises(RunDirectoryError, match=r"turns\.parquet: missing"):
        _ = load_run(path).turns


def test_a_full_disk_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    writer = CellWriter(tmp_path, CELL, "simulated")
    writer._files["turns"].close()
    with open("/dev/full", "wb") as full:
        writer._files["turns"] = full
        writer.turn(turn())
        with pytest.raises(RunDirectoryError, match="No space left on device") as caught:
            writer.finish(S, {}, FACTS)
    assert "free some disk space" in caught.value.remedy
    assert all(file.closed for file in writer._files.values())
    assert not (tmp_path / "cells" / CELL.name / "summary.json").exists()


def test_a_folder_without_permission_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)  # as root, no folder is ever read-only
    with pytest.raises(RunDirectoryError, match="Read-only file system") as caught:
        RunStore.open(tmp_path / "run", "", MANIFEST)
    assert "-o" in caught.value.remedy


@pytest.mark.parametrize("label", ["simulated", "emulated", "measured", "external"])
def test_the_label_is_kept_with_every_cell(tmp_path: Path, label: Label) -> None:
    path = write_run(tmp_path / "run", schedulers=["tao"], seeds=1, label=label)
    run = load_run(path)
    assert run.label == label
    assert next(iter(run.summaries.values()))["label"] == label


def test_a_manifest_without_label_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a label"):
        RunStore.open(tmp_path / "run", "", {})


def test_record_kinds_match_their_tables(tmp_path: Path) -> None:
    """A record whose optional fields are all given, and all missing, both read back."""
    full = replace(golden.REPLICAS[0], kv_cached=0.7)
    with RunStore.open(tmp_path / "run", "", MANIFEST) as store:
        writer = store.start(CELL)
        writer.replica(full)
        writer.session(
            SessionRecord("é", "w", "recorded", "p", "failed", 0, S, 0, 3, error='quote " and \n')
        )
        writer.finish(S, {}, {})
    run = load_run(tmp_path / "run")
    assert run.replicas.iloc[0]["kv_cached"] == 0.7
    assert run.sessions.iloc[0]["error"] == 'quote " and \n'
    assert len(run.turns) == 0
    assert TurnRecord.__slots__
    assert ReplicaRecord.__slots__
