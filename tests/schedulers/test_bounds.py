"""The relaxed throughput bound, worked out by hand."""

from __future__ import annotations

import pytest

from schedulers.bounds import TurnWork, decode_throughput_bound


def step(prefill: int, batch: int, context: int) -> float:
    """10 ms a step, 1 ms a sequence, 1 us a context token, 10 us a prefill token."""
    return 0.010 + 0.001 * batch + 1e-6 * context + 1e-5 * prefill


ONE_TURN = [TurnWork(new_tokens=1000, kept_tokens=0, output_tokens=101, tool_s=0.0)]


def test_one_session_alone_is_limited_by_itself() -> None:
    # Prefill 10 + 10 = 20 ms; 100 decode steps of 10 + 1 + 1.05 ms = 1.205 s; 101 tokens.
    bound = decode_throughput_bound([ONE_TURN], step, replicas=1, workers=1)
    assert bound.longest_s == pytest.approx(1.225)
    assert bound.sessions_s == pytest.approx(1.225)
    # Shared: 100 * 12.05 ms + 1000 * 10 us = 1.215 s.
    assert bound.compute_s == pytest.approx(1.215)
    assert bound.tokens_per_s == pytest.approx(101 / 1.225)
    assert bound.limit == "sessions"


def test_many_sessions_are_limited_by_compute() -> None:
    # 40 workers on 2 replicas: batches of 20. A step takes 10 + 20 + 20 * 1.05 = 51 ms, a share
    # of it 2.55 ms. A turn: 100 * 2.55 ms + 10 ms = 0.265 s; 40 of them on 2 replicas 5.3 s.
    bound = decode_throughput_bound([ONE_TURN] * 40, step, replicas=2, workers=40)
    assert bound.compute_s == pytest.approx(5.3)
    assert bound.sessions_s == pytest.approx(1.225)
    assert bound.limit == "compute"
    assert bound.tokens_per_s == pytest.approx(40 * 101 / 5.3)


def test_tools_limit_few_workers() -> None:
    # Two turns with 10 s of tools between: 1.225 + 10 + second turn. Second turn keeps 1,101
    # tokens and adds 99: prefill 10 + 0.99 ms, 10 decode steps of 10 + 1 + 1.205 ms.
    session = [TurnWork(1000, 0, 101, 10.0), TurnWork(99, 1101, 11)]
    alone = 1.225 + 10 + 0.01099 + 10 * 0.012205
    bound = decode_throughput_bound([session] * 4, step, replicas=4, workers=2)
    assert bound.sessions_s == pytest.approx(4 * alone / 2)
    assert bound.longest_s == pytest.approx(alone)
    assert bound.limit == "sessions"
    assert bound.tokens_per_s == pytest.approx(4 * 112 / (2 * alone))


def test_one_long_session_limits_the_rest() -> None:
    bound = decode_throughput_bound(
        [ONE_TURN, [TurnWork(10, 0, 1, 100.0), TurnWork(10, 11, 1)]], step, replicas=2, workers=8
    )
    # 10.1 ms + 100 s + 10.1 ms.
    assert bound.longest_s == pytest.approx(100.0202)
    assert bound.limit == "longest session"


def test_long_prompts_take_several_steps_alone() -> None:
    turn = [TurnWork(2500, 0, 1)]
    # Chunks of 1000, 1000, 500: 3 * 10 ms + 25 ms.
    bound = decode_throughput_bound([turn], step, replicas=1, workers=1, chunk_tokens=1000)
    assert bound.longest_s == pytest.approx(0.055)


def test_a_fifo_batch_server_never_passes_the_bound() -> None:
    # A server that runs everything at once in one batch: steps until all are done.
    lengths = [5, 20, 40]
    sessions = [[TurnWork(100, 0, length)] for length in lengths]
    seconds = step(300, 0, 0)
    for number in range(1, max(lengths)):
        alive = [length for length in lengths if length > number]
        seconds += step(0, len(alive), sum(100 + number for _ in alive))
    bound = decode_throughput_bound(sessions, step, replicas=1, workers=3)
    assert sum(lengths) / seconds <= bound.tokens_per_s


@pytest.mark.parametrize("wrong", [{"replicas": 0, "workers": 1}, {"replicas": 1, "workers": 0}])
def test_refuses_empty_clusters(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        decode_throughput_bound([ONE_TURN], step, **wrong)


def test_refuses_sessions_without_output() -> None:
    with pytest.raises(ValueError, match="no output"):
        decode_throughput_bound([[TurnWork(10, 0, 0)]], step, replicas=1, workers=1)
