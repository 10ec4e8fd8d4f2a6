"""Arrivals of a specification on the emulator: a generated mix, bursty; a recorded one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from harness.experiment import run
from results.store import load_run
from workloads.arrivals import gamma
from workloads.mixing import mixed_sessions
from workloads.trace import write_trace


def test_arrivals_are_those_of_the_simulator(tmp_path: Path) -> None:
    weights = {"azure-chat": 3.0, "azure-code": 1.0}
    write_trace(tmp_path / "mix.jsonl", gamma(mixed_sessions(weights, 6, 0), 2.0, 0, 3.0))
    bursty = {"process": "gamma", "variation": 3, "rate_per_s": [2]}
    spec = {
        "model": "qwen3-8b",
        "topology": "4x1xh100",
        "schedulers": ["round-robin"],
        "workloads": [
            {
                "name": "mixed",
                "sessions": 6,
                "settings": {"parts": "azure-chat=1, azure-code=1"},
                "arrivals": bursty,
            },
            {"name": "mix.jsonl", "arrivals": {"process": "recorded"}},
        ],
    }
    found = {}
    for engine, more in (("sim", {}), ("emulator", {"live": {"virtual_clock": True}})):
        path = tmp_path / f"{engine}.yaml"
        path.write_text(yaml.safe_dump({**spec, "engine": engine, **more}))
        found[engine] = load_run(run(path, out=tmp_path / engine, jobs=1).path)
    live, simulated = found["emulator"], found["sim"]
    assert list(live.cells["cell_workload"]) == ["mixed-2-per-s-gamma", "mix-as-recorded"]
    assert list(live.sessions["status"]) == ["finished"] * 12
    for name in ("started", "finished"):
        assert sorted(live.sessions[name]) == sorted(simulated.sessions[name])
    recorded = live.sessions[live.sessions["cell_workload"] == "mix-as-recorded"]
    lines = [json.loads(line) for line in (tmp_path / "mix.jsonl").read_text().splitlines()]
    due = sorted(line["arrival_s"] for line in lines if "arrival_s" in line)
    assert len(due) == 6
    shifted = [at - due[0] for at in due]
    assert sorted(recorded["started"] / 1e9) == pytest.approx(shifted, abs=1e-6)
