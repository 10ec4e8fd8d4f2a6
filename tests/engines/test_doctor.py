"""The doctor: each finding has a level, and a remedy unless it is ok; it works without a GPU."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from harness.live.engines import doctor, gpu_machine
from harness.live.engines.doctor import Finding
from harness.live.engines.kinds import ENGINES, engines_folder, environment
from harness.live.engines.layout import LocalGpu
from tests.cli.command import agentsched
from tests.engines.fake_nvml import FakeNvml


def test_every_line_has_a_level_and_trouble_a_remedy() -> None:
    findings = doctor.examine()
    assert {f.subject for f in findings} >= {"system", "GPU", "vllm", "sglang", "models", "ports"}
    for finding in findings:
        assert finding.level in ("ok", "warning", "error")
        assert (finding.remedy is None) == (finding.level == "ok"), finding


def test_the_command_tells_and_leaves_with_zero(tmp_path: Path) -> None:
    done = agentsched("doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "clock" in done.stdout
    assert "agentsched engine install vllm" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("limits", "level"),
    [((256, 256), "warning"), ((256, 100_000), "ok"), ((256, -1), "ok"), ((4096, 4096), "ok")],
)
def test_the_hard_limit_of_open_files_counts(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], level: str
) -> None:
    """Whatever has many sockets raises the soft one to it."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    found = {f.subject: f for f in doctor.check_limits()}
    assert found["open files"].level == level


def test_an_environment_without_python_is_an_error(tmp_path: Path) -> None:
    kind = ENGINES["vllm"]
    site = engines_folder() / "vllm" / "lib" / "python3.11" / "site-packages"
    (site / f"vllm-{kind.version}.dist-info").mkdir(parents=True)
    found = {f.subject: f for f in doctor.check_engines()}
    assert found["vllm"].level == "error"
    python = environment(kind).python
    python.parent.mkdir()
    python.touch()
    found = {f.subject: f for f in doctor.check_engines()}
    assert (found["vllm"].level, found["sglang"].level) == ("ok", "warning")


def test_another_version_is_told(tmp_path: Path) -> None:
    place = engines_folder() / "vllm"
    (place / "lib" / "python3.12" / "site-packages" / "vllm-0.20.0.dist-info").mkdir(parents=True)
    (place / "bin").mkdir()
    (place / "bin" / "python").touch()
    (found,) = [f for f in doctor.check_engines() if f.subject == "vllm"]
    assert (found.level, "0.20.0" in found.message) == ("warning", True)


def test_gpus_driver_and_links(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [LocalGpu(0, "NVIDIA H100", 81_559, 0), LocalGpu(1, "NVIDIA H100", 81_559, 1)]
    monkeypatch.setattr(doctor, "local_gpus", lambda: gpus)
    monkeypatch.setattr("shutil.which", lambda name: None)
    found = list(doctor.check_gpus(FakeNvml(2)))
    assert [f.subject for f in found] == ["GPU", "GPU", "driver", "NVLink", "NUMA"]
    assert found[0].message == "0: NVIDIA H100, 79.6 GiB, NUMA node 0"
    assert found[3].message == "links up, by GPU: 18, 18"
    alone = list(doctor.check_nvml(FakeNvml(2, lacks={"nvmlDeviceGetNvLinkState"})))
    assert alone[1] == Finding("NVLink", "warning", "none", alone[1].remedy)
    (missing,) = doctor.check_nvml(FakeNvml(1, broken="Driver Not Loaded"))
    assert "Driver Not Loaded" in missing.message


def test_the_table_of_nvidia_smi(tmp_path: Path) -> None:
    node = tmp_path / "0000:1b:00.0"
    node.mkdir()
    (node / "numa_node").write_text("1\n", "ascii")
    text = (
        "1, NVIDIA H100 80GB HBM3, 81559, 00000000:2B:00.0\n"
        "0, NVIDIA H100 80GB HBM3, 81559, 00000000:1B:00.0\n"
        "[N/A], broken\n"
    )
    assert gpu_machine.read_gpus(text, tmp_path) == [
        LocalGpu(0, "NVIDIA H100 80GB HBM3", 81_559, 1),
        LocalGpu(1, "NVIDIA H100 80GB HBM3", 81_559, None),
    ]
    assert gpu_machine.read_gpus("") == []


def test_models_in_the_cache(tmp_path: Path) -> None:
    (tmp_path / "models--Qwen--Qwen3-32B" / "snapshots").mkdir(parents=True)
    (found,) = doctor.check_models(tmp_path)
    assert (found.level, found.message) == ("ok", f"in {tmp_path}: qwen3-32b")
    (found,) = doctor.check_models(tmp_path / "none")
    assert found.level == "warning"


def test_little_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable: 1048576 kB\n", "ascii")
    (found,) = doctor.check_memory(meminfo)
    assert (found.level, "1.0 GiB" in found.message) == ("warning", True)


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    (found,) = doctor.check_disk([Path("/nowhere/runs")])
    assert found.level == "error"
