"""Large recordings are converted in little memory.

Each format is converted twice, a short recording and one ten times as long. What the longer one
needs more, scaled up to 5 GB, must leave the peak below 500 MB. What the temporary databases take
is not counted: their caches are limited.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workloads import claude_code_log as log
from workloads import spill
from workloads.readers.convert import read_any
from workloads.readers.thunderagent import HEADER
from workloads.trace import write_trace

LIMIT = 500e6
LARGE = 5e9
NOISE = 400_000
"""Bytes that the peak may differ by for other reasons (buffers, garbage); a reader that held the
recording would need several times its length more."""


def _mooncake_sessions(count: int) -> Iterator[str]:
    """Turns of 50 agents that alternate; 20 turns each."""
    for number in range(count):
        session, turn = number % 50 + number // 1000 * 50, number // 50 % 20
        prompt = 2000 + 700 * turn
        blocks = [session * 1000 + block for block in range(-(-prompt // 512))]
        row = {"session_id": f"s{session}", "input_length": prompt, "output_length": 90,
               "hash_ids": blocks, "delay": 1000}  # fmt: skip
        yield json.dumps(row)


def _bailian(count: int) -> Iterator[str]:
    for number in range(count):
        blocks = [number * 16 + block for block in range(16)]
        parent = number - 40 if number % 400 >= 40 else -1
        row = {"chat_id": number, "parent_chat_id": parent, "timestamp": number * 0.1,
               "input_length": 256, "output_length": 90, "type": "text", "turn": 1,
               "hash_ids": blocks}  # fmt: skip
        yield json.dumps(row)


def _thunderagent(count: int) -> Iterator[str]:
    yield ",".join(HEADER)
    for number in range(count):
        session, turn = number % 30 + number // 600 * 30, number // 30 % 20
        yield f"agent-{session},{turn + 1},0.1523,2.3456,0.0,1.2345,0.85,{1770532800.0 + number}"


def _tracelab(count: int) -> Iterator[str]:
    event = {"event_type": "text", "timestamp": "2026-06-01T05:40:29.887Z", "content_chars": 116}
    for number in range(count):
        session, turn = number % 20 + number // 400 * 20, number // 20 % 20
        row = {"session_id": f"claude:{session}", "round_index": turn, "round_id": f"r{number}",
               "input_tokens_total": 9000 + 500 * turn, "prefix_tokens": 8000,
               "output_tokens": 300, "timing_events": [event] * 6, "tools": []}  # fmt: skip
        yield json.dumps(row)


def _claude_code(count: int) -> Iterator[str]:
    """One session, with tool results of 2 kB."""
    yield json.dumps(log.person("00:00.000", "go"))
    for number in range(count):
        used = log.usage(300, 0, 9000 + 300 * number, 80)
        name = f"m{number}"
        yield json.dumps(log.reply("00:05.000", name, used, log.call("Bash", name, command="ls")))
        done: dict[str, Any] = log.result("00:06.000", name)
        yield json.dumps(done | {"toolUseResult": {"stdout": "x" * 2000}})


def _native(count: int) -> Iterator[str]:
    for number in range(count):
        session, turn = number // 20, number % 20
        head = {"workload": "w", "origin": "recorded"} if not turn else {}
        row = {"v": 1, "session": f"s{session}", "turn": turn, "new_tokens": 500,
               "output_tokens": 90, "tools": [{"name": "bash:ls", "seconds": 1.5}]}  # fmt: skip
        yield json.dumps(row | head)


FORMATS: dict[str, tuple[Callable[[int], Iterator[str]], int]] = {
    "mooncake-sessions": (_mooncake_sessions, 400),
    "bailian": (_bailian, 500),
    "thunderagent": (_thunderagent, 1500),
    "tracelab": (_tracelab, 400),
    "native": (_native, 700),
    "claude-code": (_claude_code, 30),
}


def _record(folder: Path, name: str, times: int) -> tuple[Path, int]:
    """A recording, and its bytes: one file, or as many log files as `times` says."""
    write, count = FORMATS[name]
    single = name != "claude-code"
    for number in range(1 if single else 4 * times):
        with (folder / f"{number}.jsonl").open("w") as file:
            file.writelines(f"{line}\n" for line in write(count * times if single else count))
    size = sum(path.stat().st_size for path in folder.iterdir())
    return (folder / "0.jsonl" if single else folder), size


def _peak(folder: Path, name: str, times: int) -> tuple[int, int]:
    """(bytes of the recording, most bytes that were allocated while it was converted)"""
    place = folder / str(times)
    place.mkdir()
    path, size = _record(place, name, times)
    tracemalloc.start()
    try:
        write_trace(folder / f"{times}.out.jsonl", read_any(path, name))
        return size, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", FORMATS)
def test_5_gb_need_less_than_500_mb(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "IN_MEMORY", 20)
    small, before = _peak(tmp_path, name, 1)
    large, after = _peak(tmp_path, name, 10)
    assert large > 9 * small
    growth = max(0, after - before - NOISE) / (large - small)
    assert after + growth * LARGE < LIMIT, f"{growth:.3f} bytes more for each byte of the file"
