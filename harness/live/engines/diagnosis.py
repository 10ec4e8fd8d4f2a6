"""What a crash at start was, from the engine's own words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentsched import AgentschedError
from harness.live.engines.process import LeashedProcess

SHOWN_LINES = 12


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A cause in words, and its remedy."""

    cause: str
    remedy: str


# In this order: an early line of a log often causes what a later one says.
_KNOWN: tuple[tuple[str, Diagnosis], ...] = (
    (
        r"address already in use|errno 98|port \d+ is (already )?in use|"
        r"port at \d+ is not available",
        Diagnosis("a port is taken", "set launch.base_port to another, or 0 for free ones"),
    ),
    (
        r"unrecognized arguments|no such option|invalid choice:",
        Diagnosis(
            "the engine does not know a flag",
            "its version differs from the pinned one (agentsched engine list), or "
            "launch.extra_args is wrong",
        ),
    ),
    (
        r"out of memory|outofmemoryerror|no available memory for the cache blocks|"
        r"free memory on device .* is less than desired|cannot allocate memory|"
        r"not enough memory\. please try to increase|available memory .* is less than",
        Diagnosis(
            "out of memory",
            "stop what else uses the GPUs (nvidia-smi), lower memory.gpu_memory_utilization, or "
            "choose a topology with more tensor_parallel; on CPUs, one with less kv_cache_gib",
        ),
    ),
    (
        r"is larger than the (available kv cache|maximum number of tokens)|"
        r"kv cache is needed, which is larger|larger than .* kv cache",
        Diagnosis(
            "the KV cache holds less than one turn of full length",
            "lower memory.max_model_len, or raise memory.gpu_memory_utilization",
        ),
    ),
    (
        r"gated repo|401 client error|403 client error|access to model .* is restricted",
        Diagnosis(
            "the model's repository asks for permission",
            "accept its licence on the hub and set HF_TOKEN, or give a local folder with "
            "launch.model_path",
        ),
    ),
    (
        r"is not a local folder and is not a valid model identifier|repository not found|"
        r"repositorynotfounderror|localentrynotfounderror|offlinemodeisenabled|"
        r"does not appear to have a file named|couldn't connect to|we couldn't connect|"
        r"cannot find the requested files|no such file or directory: .*config\.json|"
        r"invalid repository id or local directory|hfvalidationerror",
        Diagnosis(
            "the model was not found",
            "download it first, or give its folder with launch.model_path",
        ),
    ),
    (
        r"no kernel image is available|compute capability|is not supported on this gpu|"
        r"no cuda gpus are available|failed to infer device type|libcuda\.so|"
        r"cuda driver version is insufficient|found no nvidia driver|"
        r"torch not compiled with cuda|illegal instruction|please use .* avx",
        Diagnosis(
            "the engine does not run on this GPU, driver or processor",
            "agentsched doctor shows what there is; a newer driver, or another engine, is needed",
        ),
    ),
    (
        r"no module named|undefined symbol|cannot open shared object file|importerror",
        Diagnosis(
            "the engine's environment is incomplete",
            "make it anew: agentsched engine install NAME --again",
        ),
    ),
    (
        r"no space left on device",
        Diagnosis("the disk is full", "free some space, or move HF_HOME and AGENTSCHED_HOME"),
    ),
)
_TRIVIAL = re.compile(r"^(\s|Traceback|During handling|The above exception)|^\W*$")
_TELLING = re.compile(r"(error|exception|assert|fatal|killed)", re.IGNORECASE)


def diagnose(lines: Sequence[str]) -> Diagnosis | None:
    """The cause that the log names; None: none that is known."""
    text = "\n".join(lines).lower()
    for pattern, diagnosis in _KNOWN:
        if re.search(pattern, text):
            return diagnosis
    return None


def start_error(process: LeashedProcess, why: str) -> AgentschedError:
    """An error with the end of the engine's log and the remedy for what it says.

    Args:
        why: as `ended with exit code 1`.
    """
    lines = process.last_lines(400)
    found = diagnose(lines)
    shown = "\n".join(f"    {line[:300]}" for line in _telling(lines))
    cause = f" ({found.cause})" if found is not None else ""
    remedy = found.remedy if found is not None else f"read {process.log}"
    if process.exit_code in (137, 247) and found is None:
        remedy = "it was killed, perhaps for memory: see the kernel's log (dmesg)"
    return AgentschedError(
        f"replica {process.name} {why}{cause}; the end of its log:\n{shown or '    (empty)'}",
        f"{remedy}; whole log: {process.log}" if str(process.log) not in remedy else remedy,
    )


def _telling(lines: Sequence[str]) -> list[str]:
    """The last lines, led by the last one that names an error if that lies before them."""
    last = list(lines[-SHOWN_LINES:])
    for line in reversed(lines[:-SHOWN_LINES]):
        if _TELLING.search(line) and not _TRIVIAL.match(line):
            return [line, "...", *last]
    return last
