"""Metrics pages of vLLM and SGLang, old and new."""

from __future__ import annotations

from harness.live.emulated_answers import engine_metrics
from harness.live.fronts import replica_record
from harness.live.gauges import Gauges, KvTransfers, read_gauges
from schedulers.types import ReplicaSample

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 2013.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7960113074369879e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 608.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 7.0
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 2013.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 1405.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1e3
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="1500"} 1.0
"""

SGLANG = """\
sglang:num_running_reqs{model_name="m"} 5.0
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:token_usage{model_name="m"} 0.75
sglang:cache_hit_rate{model_name="m"} 0.1
sglang:prompt_tokens_total{model_name="m"} 900.0
sglang:generation_tokens_total{model_name="m"} 90.0
sglang:cached_tokens_total{model_name="m",cache_source="device"} 100.0
sglang:cached_tokens_total{model_name="m",cache_source="host"} 50.0
sglang:max_total_num_tokens{model_name="m"} 4096.0
"""


def test_vllm_with_two_engines_behind_one_endpoint() -> None:
    found = read_gauges(VLLM)
    assert found.capacity_tokens == 16 * (1000 + 1500)
    assert found.sample == ReplicaSample(
        running=7,
        waiting=1,
        kv_usage=0.375,
        prefix_queries=2013,
        prefix_hits=608,
        preemptions=2,
        prompt_tokens=2013,
        generation_tokens=1000,
    )


def test_old_names_of_vllm() -> None:
    page = "vllm:gpu_cache_usage_perc 0.25\nvllm:gpu_prefix_cache_hits_total 7\n"
    sample = read_gauges(page).sample
    assert (sample.kv_usage, sample.prefix_hits, sample.running) == (0.25, 7, None)


def test_sglang() -> None:
    found = read_gauges(SGLANG)
    assert found.capacity_tokens == 4096
    assert found.sample == ReplicaSample(
        running=5,
        waiting=2,
        kv_usage=0.75,
        prefix_queries=900,
        prefix_hits=150,
        prompt_tokens=900,
        generation_tokens=90,
    )


def test_what_is_missing_or_odd_is_unknown() -> None:
    page = (
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n'
        "vllm:num_requests_running NaN\nvllm:num_requests_waiting many\n"
        'vllm:kv_cache_usage_perc{engine="0"} 0.5 1700000000000\nother:metric 1\n\n'
    )
    found = read_gauges(page)
    assert found.capacity_tokens is None
    assert found.sample == ReplicaSample(kv_usage=0.5)


def test_what_the_emulator_shows_reads_back_equal() -> None:
    sample = ReplicaSample(3, 2, 1 / 3, 1000, 400, 1, 1000, 77)
    found = read_gauges(engine_metrics(sample, "m", 16, 500).decode())
    assert (found.sample, found.capacity_tokens) == (sample, 8000)


def test_transfers_of_vllm() -> None:
    """As vLLM 0.32 with NIXL shows them; the prompt tokens by where their KV came from."""
    label = 'engine="0",model_name="m"'
    page = (
        f'vllm:nixl_xfer_time_seconds_bucket{{{label},le="0.1"}} 3.0\n'
        f"vllm:nixl_xfer_time_seconds_count{{{label}}} 12.0\n"
        f"vllm:nixl_xfer_time_seconds_sum{{{label}}} 4.5\n"
        f"vllm:nixl_bytes_transferred_count{{{label}}} 12.0\n"
        f"vllm:nixl_bytes_transferred_sum{{{label}}} 1.3533184e+07\n"
        f'vllm:prompt_tokens_by_source_total{{{label},source="local_compute"}} 10686.0\n'
        f'vllm:prompt_tokens_by_source_total{{{label},source="external_kv_transfer"}} 13035.0\n'
    )
    assert read_gauges(page).kv == KvTransfers(12, 4.5, 13_533_184, 13_035)
    assert read_gauges(VLLM).kv is None


def test_transfers_of_sglang() -> None:
    """Milliseconds and MiB; it does not say of how many tokens."""
    page = (
        'sglang:kv_transfer_latency_ms_count{tp_rank="0"} 4.0\n'
        'sglang:kv_transfer_latency_ms_sum{tp_rank="0"} 500.0\n'
        'sglang:kv_transfer_total_mb_sum{tp_rank="0"} 1.5\n'
    )
    assert read_gauges(page).kv == KvTransfers(4, 0.5, 1_572_864)


def test_transfers_between_two_looks() -> None:
    now, before = KvTransfers(5, 2.5, 100, 40), KvTransfers(3, 1.0, 60, 30)
    assert now.since(before) == KvTransfers(2, 1.5, 40, 10)
    assert now.since(KvTransfers(3, 1.0, 60)).tokens is None


def test_records_of_replicas_count_from_the_start_of_the_cell() -> None:
    """An engine that outlives cells had computed 900 - 300 - 200 = 400 tokens before this one; a
    restarted one counts from 0."""

    def page(prompt: int, hits: int, received: int, generated: int) -> Gauges:
        sample = ReplicaSample(
            prompt_tokens=prompt, prefix_hits=hits, generation_tokens=generated, preemptions=1
        )
        return Gauges(sample, None, KvTransfers(1, 0.1, 10, received))

    before, now = page(900, 300, 200, 50), page(1500, 500, 350, 80)
    record = replica_record(7, "r0", now, before)
    assert (record.prefill_tokens, record.decode_tokens, record.preemptions) == (250, 30, 0)
    record = replica_record(7, "r0", page(100, 10, 0, 5), before)
    assert (record.prefill_tokens, record.decode_tokens, record.preemptions) == (90, 5, 1)
    record = replica_record(7, "r0", now)
    assert (record.prefill_tokens, record.decode_tokens, record.preemptions) == (650, 80, 1)
