from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.frames import Frames, table
from results.metrics import BY_TAG, MAIN, METRICS, summarise
from results.records import ReplicaRecord, SessionRecord, TurnRecord
from results.reference import reference
from tests.oracles import metrics as oracle
from tests.results import golden
from tests.results.synthetic import MS, S, turn

# Served turns: a0 a1 b0 b1 d0. Every number follows from the times in golden.py.
GOLDEN: dict[str, float | None] = {
    # a: 10 - 0 = 10 s, b: 16 - 0 = 16 s. d is a sub-agent, c failed.
    "latency_mean": (10 + 16) / 2,
    "latency_p50": 13.0,
    "latency_p90": 10 + 0.90 * 6,
    "latency_p95": 10 + 0.95 * 6,
    "latency_p99": 10 + 0.99 * 6,
    # a0 1-0=1, a1 8-5=3, b0 2-1=1, b1 13-8=5, d0 4-3=1; sorted 1 1 1 3 5
    "ttft_mean": 11 / 5,
    "ttft_p50": 1.0,
    "ttft_p90": 3 + 0.6 * 2,  # place 0.90 * 4 = 3.6
    "ttft_p95": 3 + 0.8 * 2,
    "ttft_p99": 3 + 0.96 * 2,
    # a0 2000/100=20, a1 2000/40=50, b1 3000/30=100, d0 1000/10=100; b0 has a single token
    "tpot_mean": 270 / 4,
    "tpot_p50": (50 + 100) / 2,
    "tpot_p90": 100.0,  # place 0.9 * 3 = 2.7, between 100 and 100
    "tpot_p95": 100.0,
    "tpot_p99": 100.0,
    "itl_mean": 8000 / 180,  # (2+2+3+1) s over 100+40+30+10 gaps
    # worst gap of a 0.2, b 0.1, d 0.1
    "stall_mean": 0.4 / 3,
    "stall_p95": 0.1 + 0.9 * 0.1,  # place 0.95 * 2 = 1.9
    "stall_max": 0.2,
    "decode_tps": (101 + 41 + 1 + 31 + 11) / 20,  # 185 tokens
    # Two tasks are active from 0 to 15 (c starts as a ends); of b1's 13..16 two thirds lie inside.
    "decode_tps_steady": (101 + 41 + 1 + 31 * 2 / 3 + 11) / 15,
    "steady_trimmed": 100 * 5 / 20,
    "tps": (4400 + 185) / 20,  # prompts 1000+1200+800+1000+400
    "prefill_tps": None,  # b0's cached count is unknown
    "engine_prefill_tps": (2000 + 1000) / 20,
    "cache_hit": 100 * (0 + 1000 + 600 + 100) / (1000 + 1200 + 1000 + 400),
    "cache_known": 100 * 4 / 5,
    # a1 6-5=1, b1 12-8=4, the other three 0
    "pause_wait_mean": 5 / 5,
    "pause_wait_p95": 1 + 0.8 * 3,  # place 0.95 * 4 = 3.8
    "pause_wait_max": 4.0,
    "pause_wait_held_mean": 5 / 2,
    "held_share": 100 * 2 / 5,
    # a1 8-5=3, b1 13-8=5
    "tool_end_to_first_token_mean": 4.0,
    "tool_end_to_first_token_p95": 3 + 0.95 * 2,
    # a: a1 8-0=8; b: b1 13-1=12; d: its last turn 4-3=1
    "ttfet_mean": 21 / 3,
    "ttfet_p50": 8.0,
    "ttfet_p90": 8 + 0.8 * 4,  # place 0.9 * 2 = 1.8
    "ttfet_p95": 8 + 0.9 * 4,
    "ttfet_p99": 8 + 0.98 * 4,
    # less the tools before: a 8-2=6, b 12-4=8, d 1
    "ttfet_net_mean": 15 / 3,
    "ttfet_net_p95": 6 + 0.9 * 2,
    # TTFT <= 2.5 s and TPOT <= 60 ms: a0 (1, 20) and b0 (1, one token) meet both; a1 and b1 miss
    # TTFT, d0 TPOT, c0 failed. e0 never asked for service.
    "slo_attainment": 100 * 2 / 6,
    "slo_violations": 100 * 4 / 6,
    "goodput": 2 / 20,
    "ttfet_attainment": 100 * 2 / 5,  # a and d within 10 s, of five sessions
    "tokens_per_joule": 185 / 370,
    # a 1101*5 + 1241*5, b 801*7 + 1031*8, d 411*2 token-seconds of 2000 * 20
    "working_set_kv": 100 * (5505 + 6205 + 5607 + 8248 + 822) / 40_000,
    # Every turn of it was served in one leg.
    "two_leg_turns": 0.0,
    "kv_transfers": None,
    "kv_transfer_mean": None,
    "handover_mean": None,
    "handover_p95": None,
    "moves_per_session": 1 / 3,
    "concurrency_mean": (10 + 16 + 5) / 20,
    "concurrency_max": 2.0,
    "concurrency_share": 100.0,
    "tasks_per_hour": 3600 * 2 / 20,
    "engine_waiting_mean": (0 + 0 + 1 + 1) / 4,
    "engine_running_mean": (2 + 0 + 3 + 1) / 4,
    "kv_used_mean": 100 * (0.2 + 0 + 0.6 + 0.4) / 4,
    "kv_used_max": 60.0,
    "preemptions": 3.0,
    "load_imbalance": (2 / 1 + 4 / 3) / 2,  # loads 2,0 then 4,2
    "turns_ok": 5.0,
    "turns_failed": 1.0,
    "turns_rejected": 0.0,
    "turns_client_gone": 0.0,
    "turns_context_exceeded": 1.0,
    "turns_too_long": 0.0,
    "sessions_finished": 3.0,
    "sessions_failed": 1.0,
    "sessions_rejected": 0.0,
    "sessions_client_gone": 0.0,
    "sessions_context_exceeded": 1.0,
    "sessions_too_long": 0.0,
    "sessions_deadline": 0.0,
}


def test_golden_values_cover_every_metric() -> None:
    assert set(GOLDEN) == set(BY_TAG)


@pytest.mark.parametrize("tag", sorted(GOLDEN))
def test_golden_value(tag: str) -> None:
    found = BY_TAG[tag].compute(golden.frames()).value
    wanted = GOLDEN[tag]
    assert found == (wanted if wanted is None else pytest.approx(wanted, rel=1e-12))


def test_every_unknown_is_none_and_never_zero() -> None:
    unknown = [
        *("slo_attainment", "slo_violations", "goodput", "ttfet_attainment"),
        *("tokens_per_joule", "working_set_kv", "decode_tps_steady", "concurrency_share"),
    ]
    bare = golden.frames(facts={}, workers=0)
    assert {tag: BY_TAG[tag].compute(bare).value for tag in unknown} == dict.fromkeys(unknown)


def test_a_cell_without_any_record_has_no_values_but_its_counts() -> None:
    empty = Frames(
        table(TurnRecord, []).to_pandas(),
        table(SessionRecord, []).to_pandas(),
        table(ReplicaRecord, []).to_pandas(),
        makespan_s=0.0,
        workers=4,
        facts={"slo": golden.FACTS["slo"]},
    )
    values = {tag: entry["value"] for tag, entry in summarise(empty).items()}
    zero = {tag for tag, value in values.items() if value is not None}
    assert zero == {t for t in values if t.startswith(("turns_", "sessions_"))}
    assert {values[tag] for tag in zero} == {0.0}


def test_transfers_by_the_turns_times_and_by_the_engines_counters() -> None:
    """Three turns in two legs, their prefill over at 0.4 s. The KV of two was seen to leave and
    arrive: 100 and 300 ms. Counters, where there are some, know of all three: 600 ms."""
    legs: dict[str, Any] = {"prefill_replica": "p0", "prefilled": 400 * MS}
    rows = [
        turn("a", 0, first_token=1000 * MS, kv_sent=400 * MS, kv_received=500 * MS, **legs),
        turn("a", 1, first_token=1200 * MS, kv_sent=500 * MS, kv_received=800 * MS, **legs),
        turn("a", 2, first_token=1400 * MS, **legs),
        turn("a", 3),
    ]
    turns = table(TurnRecord, rows).to_pandas()
    found = summarise(golden.frames(turns=turns, facts={}))
    tags = ("two_leg_turns", "kv_transfers", "kv_transfer_mean", "handover_mean")
    assert [found[tag]["value"] for tag in tags] == [3, 2, 200, pytest.approx(0.8)]
    counted = {"kv_transfers": {"count": 3, "seconds": 0.6, "bytes": 9}}
    found = summarise(golden.frames(turns=turns, facts=counted))
    assert [found[tag]["value"] for tag in tags] == [
        *(3, 3, pytest.approx(200), pytest.approx(0.8)),
    ]
    none = {"kv_transfers": {"count": 0, "seconds": 0.0, "bytes": 0}}
    found = summarise(golden.frames(facts=none))
    assert [found[tag]["value"] for tag in tags] == [0, 0, None, None]


def test_a_turn_without_a_streamed_first_token_counts_for_tokens_but_not_for_ttft() -> None:
    turns = [turn("a", 0), turn("a", 1, first_token=None, output_tokens=9)]
    frames = golden.frames(turns=table(TurnRecord, turns).to_pandas())
    assert BY_TAG["ttft_mean"].compute(frames) == (1.0, 1)
    assert BY_TAG["decode_tps"].compute(frames).value == (11 + 9) / 20


def test_every_metric_is_documented_and_the_page_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert page.read_text("utf-8") == reference(), (
        "run: python -m results.reference > docs/metrics.md"
    )
    assert all(m.formula and m.source and m.unit for m in METRICS)
    assert set(MAIN) <= set(BY_TAG)


def test_tags_are_unique() -> None:
    assert len(BY_TAG) == len(METRICS)


@st.composite
def cells(draw: st.DrawFn) -> dict[str, Any]:
    """Random, not always sensible records: metrics must agree on any."""
    turns, sessions = [], []
    workers = draw(st.integers(0, 4))
    for number in range(draw(st.integers(0, 5))):
        name = f"s{number}"
        now = started = draw(st.integers(0, 20)) * 500 * MS
        count = draw(st.integers(0, 4))
        for index in range(count):
            wait, first, decode = (draw(st.integers(0, 6)) * 250 * MS for _ in range(3))
            prompt = draw(st.integers(1, 5000))
            turns.append(
                turn(
                    name,
                    index,
                    status=draw(st.sampled_from(["ok", "ok", "ok", "failed", "too_long"])),
                    arrived=now,
                    dispatched=now + wait,
                    first_token=draw(st.sampled_from([None, now + wait + first])),
                    finished=now + wait + first + decode,
                    prompt_tokens=prompt,
                    cached_tokens=draw(st.none() | st.integers(0, prompt)),
                    output_tokens=draw(st.integers(1, 50)),
                    visible=draw(st.booleans()),
                    last=index == count - 1,
                    tool_s=draw(st.integers(0, 4)) / 2,
                    longest_gap=draw(st.none() | st.integers(0, S)),
                )
            )
            now = turns[-1].finished + int(turns[-1].tool_s * S)
        parent = draw(st.sampled_from([None, None, "s0"]))
        sessions.append(
            SessionRecord(name, "w", "generated", parent, "finished", started, now, count, count)
        )
    order = draw(st.permutations(turns))
    samples = [
        ReplicaRecord(step * S, "r0", 1, draw(st.integers(0, 3)), 0.5, None, 0, 0, 0)
        for step in range(draw(st.integers(0, 3)))
    ]
    return {"turns": order, "sessions": sessions, "replicas": samples, "workers": workers}


@settings(max_examples=150, deadline=None)
@given(cells())
def test_metrics_agree_with_plain_python(cell: dict[str, Any]) -> None:
    frames = Frames(
        table(TurnRecord, cell["turns"]).to_pandas(),
        table(SessionRecord, cell["sessions"]).to_pandas(),
        table(ReplicaRecord, cell["replicas"]).to_pandas(),
        makespan_s=50.0,
        workers=cell["workers"],
        facts={"kv_capacity_tokens": {"r0": 7000, "r1": 3000}},
    )
    wanted = oracle.metrics(
        cell["turns"], cell["sessions"], cell["replicas"], 50.0, cell["workers"], 10_000
    )
    for tag, value in wanted.items():
        found = BY_TAG[tag].compute(frames).value
        if tag == "working_set_kv" and not cell["turns"]:
            assert found == 0
        elif value is None:
            assert found is None, tag
        else:
            assert found == pytest.approx(value, rel=1e-9, abs=1e-9), tag


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.integers(0, 100))
def test_the_oracle_quantile_is_numpys(values: list[float], percent: int) -> None:
    assert oracle.quantile(values, percent) == pytest.approx(np.percentile(values, percent))
