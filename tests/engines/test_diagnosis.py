"""Crashes at start, by lines that the engines' sources and users' reports show."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.live.engines.diagnosis import diagnose, start_error
from harness.live.engines.process import LeashedProcess

LINES = [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "out of memory"),
    (
        "ValueError: Free memory on device cuda:0 (10.1/79.1 GiB) on startup is less than desired "
        "GPU memory utilization (0.9, 71.2 GiB).",
        "out of memory",
    ),
    (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "out of memory",
    ),
    ("OSError: [Errno 98] Address already in use", "a port is taken"),
    (
        "OSError: Qwen/Qwen9 is not a local folder and is not a valid model identifier listed on",
        "the model was not found",
    ),
    (
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate snapshot",
        "the model was not found",
    ),
    ("You are trying to access a gated repo.", "the model's repository asks for permission"),
    (
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the "
        "device",
        "the engine does not run on this GPU, driver or processor",
    ),
    (
        "RuntimeError: Failed to infer device type",
        "the engine does not run on this GPU, driver or processor",
    ),
    ("error: unrecognized arguments: --enable-foo", "the engine does not know a flag"),
    (
        "ValueError: To serve at least one request with the model's max seq len (40960), 10.0 GiB "
        "KV cache is needed, which is larger than the available KV cache memory (5.0 GiB).",
        "the KV cache holds less than one turn of full length",
    ),
    ("ModuleNotFoundError: No module named 'vllm'", "the engine's environment is incomplete"),
    ("OSError: [Errno 28] No space left on device", "the disk is full"),
]


@pytest.mark.parametrize(("line", "cause"), LINES)
def test_known_crashes(line: str, cause: str) -> None:
    found = diagnose(["INFO starting", "Traceback (most recent call last):", line, "INFO bye"])
    assert found is not None
    assert found.cause == cause
    assert found.remedy


def test_unknown_crashes_point_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "r0.log"
    noise = "\n".join(f"INFO step {i}" for i in range(100))
    log.write_text(f"INFO start\nRuntimeError: the moon is full\n{noise}\n", "utf-8")
    error = start_error(LeashedProcess("r0", [], {}, log), "ended with exit code 1")
    assert diagnose(["RuntimeError: the moon is full"]) is None
    assert "RuntimeError: the moon is full" in error.message
    assert "INFO step 99" in error.message
    assert "INFO step 80" not in error.message
    assert str(log) in error.remedy


def test_an_empty_log(tmp_path: Path) -> None:
    error = start_error(LeashedProcess("r0", [], {}, tmp_path / "none"), "ended")
    assert "(empty)" in error.message
