"""Energy worked out by hand; NVML as it answers and fails; caps set and put back."""

from __future__ import annotations

import csv
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import AgentschedError
from harness.live.engines.energy_integral import Energy, EnergyIntegral
from harness.live.engines.nvml import Nvml, NvmlMissingError
from harness.live.engines.power_caps import PowerCaps, caps_folder, restore_those_left
from harness.live.engines.telemetry import (
    COUNTER_SOURCE,
    INTEGRAL_SOURCE,
    HostCpu,
    Telemetry,
    TelemetryThread,
)
from tests.engines.fake_nvml import FakeNvml

S = 10**9


def integral(*readings: tuple[float, float]) -> Energy | None:
    made = EnergyIntegral()
    for seconds, watts in readings:
        made.add(round(seconds * S), watts)
    return made.result()


def test_energy_of_a_ramp() -> None:
    # 100 W to 300 W over 2 s: (100 + 200) / 2 + (200 + 300) / 2 = 400 J. Every other reading:
    # (100 + 300) / 2 x 2 = 400 J, so the rule has no error; the readings have 5 %: 20 J.
    energy = integral((0, 100), (1, 200), (2, 300))
    assert energy is not None
    assert (energy.joules, energy.error_j, energy.seconds, energy.readings) == (400, 20, 2, 3)


def test_energy_of_a_peak_has_an_error_of_the_rule() -> None:
    # Fine: (0 + 300) / 2 + (300 + 0) / 2 = 300 J. Coarse: (0 + 0) / 2 x 2 = 0 J.
    # (300 - 0) / 3 + 5 % of 300 = 100 + 15 J.
    energy = integral((0, 0), (1, 300), (2, 0))
    assert energy is not None
    assert energy.joules == 300
    assert energy.error_j == pytest.approx(115)


def test_an_even_number_of_readings() -> None:
    # Fine: 300 + (0 + 100) / 2 x 1 = 350. Coarse: 0 over the first two seconds, then the same 50.
    energy = integral((0, 0), (1, 300), (2, 0), (3, 100))
    assert energy is not None
    assert energy.joules == 350
    assert energy.error_j == pytest.approx(100 + 17.5)


def test_uneven_spacing() -> None:
    # 0.5 s at 100 W, then 1.5 s falling to 0: 50 + 75 = 125 J.
    energy = integral((0, 100), (0.5, 100), (2, 0))
    assert energy is not None
    assert energy.joules == 125


def test_too_few_or_wrong_readings() -> None:
    assert integral() is None
    assert integral((0, 100)) is None
    with pytest.raises(ValueError, match="order of time"):
        integral((1, 100), (1, 100))
    with pytest.raises(ValueError, match="negative"):
        integral((0, -1))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 10**9), st.floats(0, 1000)), min_size=2, max_size=40))
def test_energy_is_the_sum_over_intervals(steps: list[tuple[int, float]]) -> None:
    made, now, times = EnergyIntegral(), 0, []
    for gap, watts in steps:
        now += gap
        times.append((now, watts))
        made.add(now, watts)
    plain = sum((b[0] - a[0]) / 1e9 * (a[1] + b[1]) / 2 for a, b in pairwise(times))
    result = made.result()
    assert result is not None
    assert result.joules == pytest.approx(plain, abs=1e-9)
    assert result.error_j >= 0.05 * result.joules - 1e-9


def host(tmp_path: Path, *ticks: int) -> HostCpu:
    stat = tmp_path / "stat"
    stat.write_text("cpu " + " ".join(map(str, ticks)) + "\n", "ascii")
    return HostCpu(stat)


def test_host_processors(tmp_path: Path) -> None:
    cpu = host(tmp_path, 100, 0, 50, 800, 50, 0, 0, 0)
    # 30 more ticks of user and system, 60 idle, 10 waiting for disks: 30 of 100 busy.
    (tmp_path / "stat").write_text("cpu 120 0 60 860 60 0 0 0\n", "ascii")
    assert cpu.utilization() == pytest.approx(0.3)
    assert cpu.utilization() is None  # no time has passed
    assert HostCpu(tmp_path / "none").utilization() is None


def test_columns_and_energy_from_counters(tmp_path: Path) -> None:
    fake = FakeNvml(2)
    seen = Telemetry((0, 1), Nvml(fake), host=host(tmp_path, 0, 0, 0, 0))
    for second in range(3):
        seen.look(second * S)
        fake.advance(1.0)
    summary = seen.summary()
    # Each 300 W for the 2 s between first and last look: 600 J, by counter and by power alike.
    assert summary.energy_j == pytest.approx(1200)
    assert (summary.energy_source, summary.energy_error_j) == (COUNTER_SOURCE, None)
    assert summary.integrated_j == pytest.approx(1200)
    assert summary.integrated_error_j == pytest.approx(60)
    seen.write(tmp_path / "gpus.csv")
    with (tmp_path / "gpus.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9  # two GPUs and the host, three times
    assert rows[0] == {
        "time": "0", "gpu": "0", "power_w": "300.0", "sm_clock_mhz": "1980",
        "memory_clock_mhz": "2619", "utilization": "0.5", "memory_used_mib": "1024.0",
    }  # fmt: skip
    assert (rows[2]["gpu"], rows[2]["power_w"]) == ("", "")


def test_without_a_counter_power_is_integrated(tmp_path: Path) -> None:
    fake = FakeNvml(1, lacks={"nvmlDeviceGetTotalEnergyConsumption"})
    seen = Telemetry((0,), Nvml(fake), host=host(tmp_path, 0, 0, 0, 0))
    seen.look(0)
    seen.look(2 * S)
    summary = seen.summary()
    assert (summary.energy_j, summary.energy_source) == (600, INTEGRAL_SOURCE)
    assert summary.energy_error_j == pytest.approx(30)


def test_a_gpu_that_says_nothing_leaves_columns_empty(tmp_path: Path) -> None:
    lacks = {name for name in dir(FakeNvml) if name.startswith("nvmlDeviceGet")}
    fake = FakeNvml(1, lacks=lacks - {"nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"})
    seen = Telemetry((0,), Nvml(fake), host=host(tmp_path, 0, 0, 0, 0))
    seen.look(0)
    seen.look(S)
    assert seen.summary().energy_j is None
    row = seen.rows[0]
    assert (row.power_w, row.sm_clock_mhz, row.utilization, row.memory_used_mib) == (None,) * 4


def test_absent_nvml_is_told_once() -> None:
    told: list[str] = []
    broken = FakeNvml(1, broken="Driver Not Loaded")
    beside = TelemetryThread((0, 1), 0.01, told.append, module=broken)
    beside.start()
    time.sleep(0.05)
    summary = beside.stop()
    assert told == ["no figures of the GPUs: Driver Not Loaded"]
    assert (summary.energy_j, summary.missing) == (None, "Driver Not Loaded")
    assert {row.gpu for row in beside.telemetry.rows} == {None}
    assert TelemetryThread((), 0.01, told.append).stop().missing == "the replicas have no GPU"
    assert len(told) == 1


def test_a_thread_beside_a_cell() -> None:
    fake = FakeNvml(1)
    beside = TelemetryThread((0,), 0.01, module=fake)
    beside.start()
    time.sleep(0.1)
    summary = beside.stop()
    assert len(beside.telemetry.rows) >= 4  # first and last look at least, GPU and host
    assert summary.integrated_j is not None
    assert summary.integrated_j > 0
    assert fake.open == 0
    assert beside.stop() == summary


def test_the_real_package_has_what_is_used() -> None:
    real: Any = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    for name in dir(FakeNvml):
        if name.startswith(("nvml", "NVML")):
            assert hasattr(real, name), name


def test_caps_are_set_and_put_back() -> None:
    fake = FakeNvml(2)
    caps = PowerCaps(fake)
    caps.set({1: 350})
    assert fake.limits == {0: 700_000, 1: 350_000}
    assert caps.facts() == {"1": 350}
    caps.restore()
    caps.restore()
    assert fake.limits == {0: 700_000, 1: 700_000}
    assert fake.open == 0


def test_caps_of_a_killed_run_are_put_back_by_the_next() -> None:
    fake = FakeNvml(2)
    PowerCaps(fake).set({1: 350})  # and never restored
    (note,) = caps_folder().iterdir()
    assert restore_those_left(fake) == {}  # its owner, this process, lives
    facts = json.loads(note.read_text("ascii"))
    note.write_text(json.dumps({**facts, "owner": [facts["owner"][0], 1]}), "ascii")
    assert restore_those_left(fake) == {"1": 700}
    assert fake.limits == {0: 700_000, 1: 700_000}
    assert list(caps_folder().iterdir()) == []
    note.write_text(json.dumps({**facts, "boot": "another"}), "ascii")
    assert restore_those_left(FakeNvml(1, broken="not asked")) == {}
    assert list(caps_folder().iterdir()) == []


def test_no_caps_touch_nothing() -> None:
    fake = FakeNvml(1, broken="never asked")
    PowerCaps(fake).set({})


@pytest.mark.parametrize(
    ("caps", "message"),
    [
        ({0: 350.0, 1: 100.0}, "GPU 1 takes power caps from 200 to 700 W, not 100 W"),
        ({0: 350.0, 5: 300.0}, "there is no GPU 5"),
    ],
)
def test_a_cap_that_cannot_be_set_undoes_the_others(caps: dict[int, float], message: str) -> None:
    fake = FakeNvml(2)
    with pytest.raises(AgentschedError, match=message):
        PowerCaps(fake).set(caps)
    assert fake.limits == {0: 700_000, 1: 700_000}
    assert fake.open == 0


def test_caps_without_permission() -> None:
    fake = FakeNvml(1, lacks={"nvmlDeviceSetPowerManagementLimit"})
    with pytest.raises(AgentschedError, match="GPU 0 cannot be set to 350 W") as error:
        PowerCaps(fake).set({0: 350})
    assert "root" in error.value.remedy
    with pytest.raises(AgentschedError, match="cannot be set: Driver Not Loaded"):
        PowerCaps(FakeNvml(1, broken="Driver Not Loaded")).set({0: 350})
    with pytest.raises(NvmlMissingError):
        Nvml(FakeNvml(1, broken="Driver Not Loaded"))
