"""Recorded runs of real engines: those that ship, and a user's own."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from agentsched import InputError
from harness.fields import Fields
from harness.gpus import find_gpu
from harness.models import models
from harness.specfile import parse_document
from harness.topology import Node, ReplicaSpec, Topology, find_topology

METRICS = ("ttft", "tpot", "e2e")
STATISTICS = ("mean", "p50", "p99")


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request; times in seconds from the first arrival."""

    prompt_tokens: int
    output_tokens: int
    arrival_s: float
    first_token_s: float
    last_token_s: float
    shared_with: int | None = None
    """The earlier request (by position) whose prompt begins alike; None: unknown or none."""
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run of one engine instance."""

    name: str
    model: str
    topology: Topology
    engine: str
    max_num_batched_tokens: int
    max_num_seqs: int
    requests: tuple[RecordedRequest, ...]
    """In order of arrival."""
    kv_blocks: int | None
    """As the engine reported them; None: it did not, capacity is computed."""
    data_parallel: int
    """Engine ranks; above 1 they share the experts and step together."""
    async_scheduling: bool
    """Whether the engine composed each step while the one before it ran."""
    published_error: dict[tuple[str, str], float]
    """Of another simulator on this run, percent, by (metric, statistic)."""


@cache
def shipped_runs() -> tuple[RecordedRun, ...]:
    """The runs in the package.

    Raises:
        SpecError, InputError: the data of the package is damaged.
    """
    folder = files("harness") / "data" / "validation"
    document = parse_document((folder / "runs.yaml").read_text("utf-8"), "validation/runs.yaml")
    fields = Fields(document)
    runs = []
    for group in fields.groups("runs"):
        errors = group.group("published_error")
        published = {}
        for metric in METRICS:
            row = errors.group(metric)
            for statistic in STATISTICS:
                published[metric, statistic] = row.number(statistic, above=-1e3)
            row.done()
        errors.done()
        file = group.text("file")
        runs.append(
            RecordedRun(
                name=group.text("name"),
                model=group.text("model"),
                topology=find_topology(group.text("topology")),
                engine=group.text("engine"),
                max_num_batched_tokens=group.whole("max_num_batched_tokens"),
                max_num_seqs=group.whole("max_num_seqs"),
                kv_blocks=group.whole("kv_blocks") if "kv_blocks" in group else None,
                data_parallel=group.whole("data_parallel", 1),
                async_scheduling=group.flag("async_scheduling", True),
                requests=_shipped_requests((folder / file).read_text("utf-8"), file),
                published_error=published,
            )
        )
        group.done()
    fields.done()
    return tuple(runs)


def _shipped_requests(text: str, file: str) -> tuple[RecordedRequest, ...]:
    reader = csv.DictReader(text.splitlines())
    requests = []
    for row in reader:
        read = _Row(row, file, reader.line_num)
        shared = row.get("shared_with") or None
        requests.append(
            RecordedRequest(
                prompt_tokens=read.count("prompt_tokens"),
                output_tokens=read.count("output_tokens"),
                arrival_s=read.seconds("arrival_s"),
                first_token_s=read.seconds("first_token_s"),
                last_token_s=read.seconds("last_token_s"),
                shared_with=None if shared is None else int(shared),
                shared_tokens=int(row.get("shared_tokens") or 0),
            )
        )
    return _checked(requests, file)


def read_recording(folder: Path, *, gpu: str) -> RecordedRun:
    """A run recorded by LLMServingSim's `bench`: `requests.jsonl` and `meta.json` in a folder.

    Args:
        gpu: the GPU kind it ran on, which the files may not say.

    Raises:
        InputError: a file is missing or wrong; names file, line and field.
        UsageError: no such GPU kind.
    """
    meta = _json_object(folder / "meta.json")
    flags = meta.get("engine_kwargs")
    if not isinstance(flags, dict):
        raise InputError(
            "lacks the engine's flags",
            "record it with bench",
            file=folder / "meta.json",
            field="engine_kwargs",
        )
    ranks = _flag(flags, "tensor_parallel_size", folder)
    copies = _flag(flags, "data_parallel_size", folder)
    if copies > 1 and flags.get("enable_expert_parallel") is not True:
        raise InputError(
            f"is {copies} without shared experts; such ranks are separate engines",
            "record each engine by itself",
            file=folder / "meta.json",
            field="engine_kwargs.data_parallel_size",
        )
    node = Node("node0", find_gpu(gpu), ranks)
    spec = ReplicaSpec(node, ranks, "mixed", 0.9, node.gpu.power.cap_w)
    topology = Topology(f"1x{ranks}x{gpu}", "of a recording", (node,), (spec,))
    return RecordedRun(
        name=folder.name or str(folder),
        model=_model_name(str(meta.get("model")), folder),
        topology=topology,
        engine=f"vLLM {meta.get('vllm_version', 'of unknown version')}",
        max_num_batched_tokens=_flag(flags, "max_num_batched_tokens", folder),
        max_num_seqs=_flag(flags, "max_num_seqs", folder),
        kv_blocks=_kv_blocks(meta),
        data_parallel=copies,
        async_scheduling=_async_scheduling(meta),
        requests=_recorded_requests(folder / "requests.jsonl"),
        published_error={},
    )


def _flag(flags: dict[str, Any], name: str, folder: Path) -> int:
    value = flags.get(name)
    if type(value) is not int or value < 1:
        raise InputError(
            f"is {value!r}, not a whole number of 1 or more",
            "write the flag the engine ran with",
            file=folder / "meta.json",
            field=f"engine_kwargs.{name}",
        )
    return value


def _kv_blocks(meta: dict[str, Any]) -> int | None:
    """From newer recordings, which state what the engine resolved."""
    cache = meta.get("kv_cache")
    blocks = cache.get("num_gpu_blocks") if isinstance(cache, dict) else None
    return blocks if type(blocks) is int and blocks > 0 else None


def _async_scheduling(meta: dict[str, Any]) -> bool:
    """As the recording states, or vLLM's default since 0.14."""
    config = meta.get("resolved_config")
    scheduler = config.get("scheduler_config") if isinstance(config, dict) else None
    return not (isinstance(scheduler, dict) and scheduler.get("async_scheduling") is False)


def _model_name(repository: str, folder: Path) -> str:
    for model in models().values():
        if repository == model.repository or repository.startswith(f"{model.repository}-Instruct"):
            return model.name
    raise InputError(
        f"is `{repository}`, whose shape does not ship",
        f"models: {', '.join(sorted(m.repository for m in models().values()))}",
        file=folder / "meta.json",
        field="model",
    )


def _recorded_requests(path: Path) -> tuple[RecordedRequest, ...]:
    rows = []
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            rows.append(_Row(_parse_object(line, path, number), str(path), number))
    if not rows:
        raise InputError("holds no requests", "record at least one request", file=path)
    # Arrivals are wall-clock times, the rest the engine's monotonic clock: the quickest hand-over
    # from one to the other is taken as no time.
    shift = min(row.seconds("queued_ts") - row.seconds("arrival_time") for row in rows)
    start = min(row.seconds("arrival_time") for row in rows) + shift
    requests = [
        RecordedRequest(
            prompt_tokens=row.count("input_toks"),
            output_tokens=row.count("output_toks"),
            arrival_s=row.seconds("arrival_time") + shift - start,
            first_token_s=row.seconds("first_token_ts") - start,
            last_token_s=row.seconds("last_token_ts") - start,
        )
        for row in rows
    ]
    return _checked(sorted(requests, key=lambda request: request.arrival_s), str(path))


class _Row:
    """One row of a file, with errors that name the place."""

    def __init__(self, values: dict[str, Any], file: str, line: int) -> None:
        self._values, self._file, self._line = values, file, line

    def seconds(self, name: str) -> float:
        value = self._number(name, float)
        if not math.isfinite(value):
            self._fail(name, f"is {value}")
        return value

    def count(self, name: str) -> int:
        value = int(self._number(name, int))
        if value < 1:
            self._fail(name, f"is {value}, not 1 or more")
        return value

    def _number(self, name: str, kind: Callable[[Any], float]) -> float:
        value = self._values.get(name)
        try:
            return kind(value)
        except (TypeError, ValueError):
            self._fail(name, f"is {value!r}, not a number")
        raise AssertionError

    def _fail(self, name: str, problem: str) -> None:
        raise InputError(
            problem, "record the run again", file=self._file, line=self._line, field=name
        )


def _checked(requests: list[RecordedRequest], file: str) -> tuple[RecordedRequest, ...]:
    for i, request in enumerate(requests):
        if not request.arrival_s <= request.first_token_s <= request.last_token_s:
            raise InputError(
                f"request {i} has its first token before its arrival, or its last before its first",
                "record the run again",
                file=file,
            )
        if request.shared_with is not None and not 0 <= request.shared_with < i:
            raise InputError(
                f"request {i} shares with {request.shared_with}, which is not an earlier one",
                "restore the file",
                file=file,
                field="shared_with",
            )
    return tuple(requests)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", "check the path", file=path) from None


def _json_object(path: Path) -> dict[str, Any]:
    return _parse_object("\n".join(_lines(path)), path, None)


def _parse_object(text: str, path: Path, line: int | None) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InputError(f"is not JSON: {error}", "record it again", file=path, line=line) from None
    if not isinstance(value, dict):
        raise InputError("is not a JSON object", "record it again", file=path, line=line)
    return value
