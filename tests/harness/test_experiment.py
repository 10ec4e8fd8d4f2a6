"""From a specification to cells, and what a finished or failed run says."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentsched import AgentschedError, InvalidRunError, SpecError, TopologyError, UsageError
from harness.cells import CellFailure
from harness.describe import settings_of
from harness.experiment import RunResult, run, why_invalid
from harness.explain import explain_session
from harness.overrides import Flags
from harness.plan import Plan, plan
from harness.sim.settings import SimSettings
from harness.spec import load_spec
from results.cells import CellId
from results.store import load_run
from tests.cli.command import tiny_spec


def planned(folder: Path, **fields: Any) -> Plan:
    return plan(load_spec(tiny_spec(folder, **fields)))


def test_cells_are_the_product_seed_by_seed(tmp_path: Path) -> None:
    found = planned(
        tmp_path,
        workloads=[
            {"name": "tiny.jsonl", "workers": [4, 2]},
            {"name": "lmcache-agents", "workers": 16},
        ],
        schedulers=["smetric", "round-robin"],
        seeds=[3, 5],
    )
    arms = ("smetric", "round-robin")
    loads = (("tiny", 4), ("tiny", 2), ("lmcache-agents", 16))
    assert found.cells == [
        CellId(workload, arm, workers, seed)
        for seed in (3, 5)
        for workload, workers in loads
        for arm in arms
    ]
    assert [job.cell for job in found.jobs(tmp_path)] == found.cells


def test_the_plan_counts_what_the_trace_holds(tmp_path: Path) -> None:
    (workload,) = planned(tmp_path).workloads
    # 8 sessions x 4 turns; prompts 500, 1,100, 1,700, 2,300; output 100 each.
    assert (workload.name, workload.sessions, workload.turns) == ("tiny", 8, 32)
    assert (workload.prompt_tokens, workload.output_tokens) == (44_800, 3_200)
    assert workload.origins == ("recorded",)
    assert workload.over_limit == 0


def test_the_plan_tells_sessions_over_the_context_limit(tmp_path: Path) -> None:
    # The longest turn of every session has 2,300 + 100 tokens.
    assert planned(tmp_path, sim={"context_limit": 2400}).workloads[0].over_limit == 0
    assert planned(tmp_path, sim={"context_limit": 2399}).workloads[0].over_limit == 8


def test_engine_blocks_and_limits_come_from_the_memory_plan(tmp_path: Path) -> None:
    found = planned(tmp_path, memory={"block_size": 32, "max_model_len": 20_000})
    assert (found.engine.block_size, found.engine.max_model_len) == (32, 20_000)
    assert found.cluster.replicas[0].block_size == 32


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"model": "nope"}, SpecError, "field `model`: no model `nope`"),
        ({"topology": "nope"}, SpecError, "field `topology`: no topology `nope`"),
        ({"schedulers": ["tao", "nope"]}, SpecError, "field `schedulers.1`: unknown scheduler"),
        ({"scheduler_settings": {"nope": {}}}, SpecError, "unknown scheduler `nope`"),
        (
            {"scheduler_settings": {"round-robin": {"x": 1}}},
            SpecError,
            "field `scheduler_settings.round-robin`: scheduler `round-robin` has no setting `x`",
        ),
        ({"workloads": [{"name": "no", "workers": 1}]}, SpecError, "field `workloads.0`: unknown"),
        (
            {"workloads": [{"name": "tiny.jsonl", "workers": 1, "settings": {"a": 1}}]},
            SpecError,
            "has no settings",
        ),
        (
            {"workloads": [{"name": ".", "workers": 1}]},
            SpecError,
            "is no file",
        ),
        (
            {"scheduler_settings": {"tao": {"x": 1}}},
            SpecError,
            "field `scheduler_settings.tao`: scheduler `tao` has no setting `x`",
        ),
        (
            {"sim": {"sampling_interval_s": 1e-300}},
            SpecError,
            "sampling_interval_s must be at least 0.001",
        ),
        (
            {"sim": {"kv_link": 5}},
            SpecError,
            "`kv_link` cannot be 5: it must be a mapping of fields to values",
        ),
        ({"model": "glm-4.7"}, SpecError, "glm-4.7 does not fit replica r0"),
        ({"engine_settings": {"max_num_seqs": 0}}, SpecError, "`max_num_seqs` must be at least 1"),
        ({"engine_settings": {"block_size": 16}}, SpecError, "set memory.block_size"),
        ({"engine_settings": {"block": 1}}, SpecError, "unknown field `block`"),
    ],
)
def test_what_cannot_be_is_told_before_anything_runs(
    tmp_path: Path, fields: dict[str, Any], error: type[UsageError], words: str
) -> None:
    with pytest.raises(error) as caught:
        planned(tmp_path, **fields)
    assert words in f"{caught.value.message} {caught.value.remedy}"
    assert caught.value.exit_code == TopologyError.exit_code == 2


def test_schedulers_keep_their_names_apart(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from schedulers.round_robin import RoundRobin\n"
        "class One(RoundRobin): name = 'mine'\n"
        "class Two(RoundRobin): name = 'mine'\n"
    )
    for classes, words in (
        (["One", "Two"], "two schedulers are called `mine`"),
        (["RoundRobin"], "which is the name of a shipped one"),
    ):
        targets = [f"{file}:{name}" for name in classes]
        with pytest.raises(UsageError, match=words):
            plan(load_spec(tiny_spec(tmp_path), Flags(schedulers=targets)))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("name = 'mine'", "cannot be made: TypeError: Can't instantiate abstract class"),
        ("name = 'mine'; Config = dict; choose = None", "cannot be made: TypeError"),
        ("name = 'mine'; choose = None\n  def __init__(self, *a): 1 / 0", "ZeroDivisionError"),
        ("choose = None", "has no `name`"),
    ],
)
def test_a_scheduler_that_cannot_be_made_is_told_early(
    tmp_path: Path, body: str, words: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from schedulers.base import RoutingScheduler\n"
        f"class Mine(RoutingScheduler):\n  info = 1; {body}\n"
    )
    with pytest.raises(UsageError) as caught:
        plan(load_spec(tiny_spec(tmp_path), Flags(schedulers=[f"{file}:Mine"])))
    assert words in caught.value.message


def test_a_trace_is_called_by_its_file_name(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, workloads=[{"name": "tiny.v2.jsonl", "workers": 1}])
    (tmp_path / "tiny.jsonl").rename(tmp_path / "tiny.v2.jsonl")
    assert [workload.name for workload in plan(load_spec(spec)).workloads] == ["tiny.v2"]


def test_two_traces_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    tiny_spec(tmp_path / "other")
    names = ["tiny.jsonl", "other/tiny.jsonl"]
    with pytest.raises(SpecError, match="two workloads are called `tiny`"):
        planned(tmp_path, workloads=[{"name": name, "workers": 1} for name in names])


def test_run_keeps_cells_that_are_done(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, schedulers=["round-robin", "cache-aware"])
    first = run(spec, out=tmp_path / "out", jobs=2)
    assert (len(first.done), first.kept, first.failures) == (2, (), ())
    again = run(spec, out=tmp_path / "out", jobs=2)
    assert again.kept == again.done == first.done
    again.check()
    cells = load_run(tmp_path / "out").cells
    assert list(cells["status"]) == ["done", "done"]
    assert cells["turns_ok"].tolist() == [32, 32]
    assert cells["sessions_finished"].tolist() == [8, 8]


def test_run_takes_flags(tmp_path: Path) -> None:
    flags = Flags(workers=[2], seeds=2)
    result = run(tiny_spec(tmp_path), out=tmp_path / "out", flags=flags)
    assert {(cell.workers, cell.seed) for cell in result.done} == {(2, 0), (2, 1)}


def summary(**metrics: float) -> dict[str, Any]:
    values = {
        "concurrency_share": 100,
        "concurrency_max": 4,
        "sessions_failed": 0,
        "sessions_rejected": 0,
        "turns_ok": 10,
        **metrics,
    }
    return {
        "cell": {"workers": 4},
        "metrics": {tag: {"value": value, "n": 40} for tag, value in values.items()},
    }


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({}, None),
        ({"sessions_failed": 1, "sessions_rejected": 1}, None),  # 2 of 40 is the 5 % allowed
        ({"sessions_failed": 2, "sessions_rejected": 1}, "3 of 40 sessions failed"),
        ({"turns_ok": 0}, "no turn was served"),
        ({"concurrency_share": 75, "concurrency_max": 3}, "at most 3 sessions were active"),
    ],
)
def test_why_a_result_must_not_be_used(metrics: dict[str, float], words: str | None) -> None:
    why = why_invalid(summary(**metrics), 0.05)
    if words is None:
        assert why is None
    else:
        assert why is not None
        assert words in why


def test_check_raises_what_stands_against_a_result() -> None:
    cell = CellId("w", "s", 4, 0)
    RunResult(Path("x"), (cell,), (), ()).check()
    failed = RunResult(Path("x"), (), (), (CellFailure(cell, "broken", "mend it"),))
    with pytest.raises(AgentschedError, match=r"1 of 1 cells failed; first: w.s.4w.s0: broken"):
        failed.check()
    with pytest.raises(InvalidRunError, match=r"1 of 1 cells are invalid; first: .*: too few"):
        RunResult(Path("x"), (cell,), (), (), {cell: "too few"}).check()


def test_a_cell_beside_the_planned_ones_can_be_invalid_too(tmp_path: Path) -> None:
    first = run(tiny_spec(tmp_path, schedulers=["smetric"]), out=tmp_path / "run")
    (cell,) = first.done
    assert not first.invalid
    beside = replace(cell, workload="chat-beside-tiny", workers=0)
    own, folder = (tmp_path / "run" / "cells" / each.name for each in (cell, beside))
    shutil.copytree(own, folder)
    for name, key in (("cell.json", None), ("summary.json", "cell")):
        found = json.loads((folder / name).read_text())
        (found if key is None else found[key]).update(workload=beside.workload, workers=0)
        found.setdefault("facts", {})["invalid"] = "the client was the bottleneck"
        (folder / name).write_text(json.dumps(found))
    again = run(tiny_spec(tmp_path, schedulers=["smetric"]), out=tmp_path / "run")
    assert (again.done, again.kept) == ((cell,), (cell,))
    assert again.invalid == {beside: "the client was the bottleneck"}


def decision(second: float, event: str, command: str, **fields: Any) -> dict[str, Any]:
    nothing = {"session": "a", "turn": None, "replica": None, "why": ""}
    return {"time": int(second * 1e9), "event": event, "command": command, **nothing, **fields}


def test_decisions_in_words_tell_waits_and_moves() -> None:
    log = [
        decision(1, "TurnArrived", "route", turn="a/0", replica="r0", why="idle"),
        decision(1, "TurnArrived", "route", turn="b/0", replica="r1", session="b"),
        decision(4, "Timer", "pause", replica="r0", why="no room"),
        decision(5, "TurnArrived", "hold", turn="a/1", why="paused"),
        decision(7.5, "TurnFinished", "resume", replica="r1"),
    ]
    assert list(explain_session(log, "a")) == [
        "     1.000 s  turn 0 goes to r0: idle [when a turn arrived]",
        "     4.000 s  the session loses its place on r0: no room [when a timer rang]",
        "     5.000 s  turn 1 is held at the gateway: paused [when a turn arrived]",
        "     7.500 s  the session gets a place on r1 after 2.5 s of waiting (moved from r0) "
        "[when a turn finished]",
    ]


def test_settings_are_described_by_the_text_below_them() -> None:
    (first, *_) = settings_of(SimSettings)
    assert first.name == "sampling_interval_s"
    assert first.default == "5.0"
    assert first.about == "How often gauges are polled (ThunderAgent's metrics interval)."
