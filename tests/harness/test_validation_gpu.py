"""Recorded runs of vLLM on GPUs: what the simulator was fitted to, and what it predicts."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agentsched import InputError, UsageError
from harness.sim.perf_catalogue import find_profile
from harness.sim.recorded_runs import RecordedRun, read_recording, shipped_runs
from harness.sim.validation_gpu import (
    FITTED_ON,
    RunErrors,
    compare,
    fit_host_term,
    replay,
    validate_gpu,
)

HELD_OUT = "qwen3-32b-1x2xrtx-pro-6000"
MEANS = [("ttft", "mean"), ("tpot", "mean"), ("e2e", "mean")]
TAILS = [("ttft", "p99"), ("tpot", "p99"), ("e2e", "p99")]


@cache
def errors(name: str, *, prefix_hits: bool = False) -> RunErrors:
    return {r.run: r for r in validate_gpu(prefix_hits=prefix_hits)}[name]


def test_the_held_out_run_is_predicted_within_the_goals() -> None:
    found = errors(HELD_OUT)
    assert not found.fitted
    assert found.cached_share == 0.0
    assert found.extrapolated_steps == 0
    for metric, statistic in MEANS:
        assert abs(found.error(metric, statistic)) < 3
    for metric, statistic in TAILS:
        assert abs(found.error(metric, statistic)) < 5
    assert abs(found.error("makespan", "total")) < 2


def test_prefix_hits_of_the_runs_can_be_counted() -> None:
    found = errors(HELD_OUT, prefix_hits=True)
    # The common beginnings of the requests, cut to blocks: 7.9 % of all prompt tokens.
    assert found.cached_share == pytest.approx(0.079, abs=0.002)
    for metric, statistic in (*MEANS, *TAILS):
        assert abs(found.error(metric, statistic)) < 5


def test_a_full_kv_cache_and_preemptions_are_predicted() -> None:
    """24 GB hold 41,408 tokens: the cache is full for most of the run. Its prefix hits are counted,
    since preempted requests find their own blocks again."""
    found = errors("llama-3.1-8b-1x1xrtx-4090", prefix_hits=True)
    for metric, statistic in MEANS:
        assert abs(found.error(metric, statistic)) < 3
    for metric, statistic in TAILS:
        assert abs(found.error(metric, statistic)) < 5
    assert abs(found.error("makespan", "total")) < 2


def test_the_other_simulators_errors_stand_beside() -> None:
    rows = {(row.metric, row.statistic): row for row in errors(HELD_OUT).rows}
    assert rows["ttft", "mean"].published_error == 1.3
    assert rows["e2e", "p99"].published_error == 1.3
    assert rows["makespan", "total"].published_error is None
    # Means that LLMServingSim's summary states of the recorded run: 80.3 ms and 90,408 ms (from
    # the engine's queued time; arrivals here are earlier by the wait for the running step).
    assert rows["tpot", "mean"].measured == pytest.approx(0.0803, abs=1e-4)
    assert rows["e2e", "mean"].measured == pytest.approx(90.408, rel=0.003)


def test_the_shipped_host_term_is_the_fitted_one() -> None:
    base = next(run for run in shipped_runs() if run.name == FITTED_ON)
    fitted = fit_host_term(base)
    assert fitted == find_profile("rtx-pro-6000", "vllm").host_prefill_us
    assert abs(compare(base, fitted).error("e2e", "mean")) < 0.1
    assert abs(compare(base, fitted + 1000).error("e2e", "mean")) > 0.3


def test_a_run_slower_than_recorded_gets_no_negative_host_term() -> None:
    base = next(run for run in shipped_runs() if run.name == FITTED_ON)
    assert fit_host_term(_scaled(base, 0.5)) == 0.0


def _scaled(run: RecordedRun, factor: float) -> RecordedRun:
    requests = tuple(
        replace(
            r,
            first_token_s=r.arrival_s + factor * (r.first_token_s - r.arrival_s),
            last_token_s=r.arrival_s + factor * (r.last_token_s - r.arrival_s),
        )
        for r in run.requests
    )
    return replace(run, requests=requests)


def test_the_engines_own_block_count_is_used(tmp_path: Path) -> None:
    small = recording(tmp_path, meta={"kv_cache": {"num_gpu_blocks": 123}})
    assert read_recording(small, gpu="rtx-4090").kv_blocks == 123
    assert {run.kv_blocks for run in shipped_runs()} == {None, 2588}


def test_replays_are_repeatable_and_every_request_finishes() -> None:
    run = shipped_runs()[0]
    first, second = replay(run, 1000.0), replay(run, 1000.0)
    assert (first.last_token == second.last_token).all()
    assert (first.arrival < first.first_token).all()
    assert (first.first_token < first.last_token).all()


# ---- a recording of one's own ---------------------------------------------------------------


def recording(folder: Path, **changes: Any) -> Path:
    flags = {
        "tensor_parallel_size": 1,
        "data_parallel_size": 1,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 2048,
    }
    meta = {
        "model": "meta-llama/Llama-3.1-8B",
        "vllm_version": "0.19.0",
        "engine_kwargs": flags | changes.pop("flags", {}),
    } | changes.pop("meta", {})
    rows = [
        {
            "input_toks": 100,
            "output_toks": 10,
            "arrival_time": 1000.0 + i,
            "queued_ts": 50.002 + i,
            "first_token_ts": 50.03 + i,
            "last_token_ts": 50.2 + i,
        }
        | (changes if i == 1 else {})
        for i in range(3)
    ]
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_recording_is_read_and_simulated(tmp_path: Path) -> None:
    run = read_recording(recording(tmp_path), gpu="rtx-pro-6000")
    assert (run.model, run.max_num_seqs, run.engine) == ("llama-3.1-8b", 128, "vLLM 0.19.0")
    assert [r.arrival_s for r in run.requests] == pytest.approx([0, 1, 2])
    # First tokens 28 ms after arrival: 50.03 on the engine's clock, where arrival is 50.002.
    assert run.requests[0].first_token_s == pytest.approx(0.028)
    (found,) = validate_gpu([run])
    # 10 tokens, one sequence: about 11.5 ms a token recorded and simulated alike (18.9 here).
    assert found.error("tpot", "mean") == pytest.approx(-39, abs=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_toks": 0}, r"requests.jsonl, line 2, field `output_toks`: is 0, not 1 or more"),
        ({"queued_ts": "x"}, r"line 2, field `queued_ts`: is 'x', not a number"),
        ({"last_token_ts": float("nan")}, r"line 2, field `last_token_ts`: is nan"),
        ({"last_token_ts": 1.0}, r"request 1 has its first token before its arrival"),
        ({"meta": {"model": "x/y"}}, r"meta.json, field `model`: is `x/y`, whose shape"),
        ({"meta": {"engine_kwargs": 3}}, r"meta.json, field `engine_kwargs`: lacks"),
        ({"flags": {"data_parallel_size": 2}}, r"data_parallel_size`: is 2 without shared experts"),
        ({"flags": {"max_num_seqs": None}}, r"field `engine_kwargs.max_num_seqs`: is None"),
    ],
)
def test_wrong_recordings_name_the_place(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_recording(recording(tmp_path, **changes), gpu="rtx-pro-6000")


def test_ranks_with_shared_experts_are_one_engine(tmp_path: Path) -> None:
    shared = {"data_parallel_size": 2, "enable_expert_parallel": True}
    made = recording(tmp_path, flags=shared, meta={"model": "Qwen/Qwen3-30B-A3B-Instruct-2507"})
    run = read_recording(made, gpu="rtx-pro-6000")
    assert (run.model, run.data_parallel) == ("qwen3-30b-a3b", 2)
    (found,) = validate_gpu([run])
    assert "2 ranks in step" in found.description
    assert found.error("e2e", "mean") < 0  # 6.6 ms a token simulated, 18.9 in the made-up recording


def test_missing_files_and_unknown_gpus(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"meta\.json: cannot be read"):
        read_recording(tmp_path, gpu="rtx-pro-6000")
    recording(tmp_path)
    with pytest.raises(UsageError, match="no GPU kind `rtx`"):
        read_recording(tmp_path, gpu="rtx")
    (tmp_path / "requests.jsonl").write_text('{"input_toks": 5\n')
    with pytest.raises(InputError, match=r"requests\.jsonl, line 1: is not JSON"):
        read_recording(tmp_path, gpu="rtx-pro-6000")
    (tmp_path / "requests.jsonl").write_text("")
    with pytest.raises(InputError, match="holds no requests"):
        read_recording(tmp_path, gpu="rtx-pro-6000")
