"""vLLM's scheduler with a note of everything that goes into it and comes out.

Loaded by the engine itself: `--scheduler-cls agentsched_recorder.RecordingScheduler`, with this
file's folder in PYTHONPATH and AGENTSCHED_STEPS naming the folder that the notes go to, one file a
process. Nothing
is changed but for the time it takes to write a line, some ten microseconds.

Lines are JSON lists, times in nanoseconds of the monotonic clock:

    ["begin", TIME, {settings}]
    ["add", TIME, REQUEST, [prompt tokens], output tokens, priority]
    ["step", TIME, [[REQUEST, new tokens, computed before], ...], [preempted], free blocks, evicted]
    ["out", TIME, {REQUEST: [sampled tokens], ...}]
    ["drop", TIME, [REQUEST, ...]]
    ["reset", TIME, done]

`evicted` counts the cached blocks that lost their content by then.
"""

from __future__ import annotations

import json
import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

FOLDER = "AGENTSCHED_STEPS"
_NAME = "RecordingScheduler"


class Notes:
    """Writes the lines of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self.evicted = 0
        self._pool = scheduler.kv_cache_manager.block_pool
        self._watch_evictions()
        path = Path(os.environ[FOLDER], f"{os.getpid()}.jsonl")
        self._file = path.open("a", encoding="ascii", buffering=1)
        self.write("begin", _settings(scheduler))

    def _watch_evictions(self) -> None:
        evict = self._pool._maybe_evict_cached_block

        def counted(block: Any) -> bool:
            done = bool(evict(block))
            self.evicted += done
            return done

        self._pool._maybe_evict_cached_block = counted

    def write(self, kind: str, *values: Any, at: int | None = None) -> None:
        when = time.monotonic_ns() if at is None else at
        self._file.write(json.dumps([kind, when, *values], separators=(",", ":")) + "\n")

    def close(self) -> None:
        """The engine's process never does: each line is written when it is noted."""
        self._file.close()

    def step(self, scheduler: Any, output: Any, began: int) -> None:
        batch = []
        for name, new in output.num_scheduled_tokens.items():
            batch.append([name, new, scheduler.requests[name].num_computed_tokens - new])
        preempted = sorted(output.preempted_req_ids or ())
        free = self._pool.get_num_free_blocks()
        self.write("step", batch, preempted, free, self.evicted, at=began)


def _settings(scheduler: Any) -> dict[str, Any]:
    config, cache = scheduler.scheduler_config, scheduler.cache_config
    events = getattr(scheduler.vllm_config, "kv_events_config", None)
    return {
        "version": import_module("vllm").__version__,
        "replica": str(getattr(events, "topic", "")).removeprefix("kv@"),
        "block_size": cache.block_size,
        "blocks": cache.num_gpu_blocks,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "max_model_len": scheduler.max_model_len,
        "policy": config.policy,
        "watermark": config.watermark,
        "reserve_full_input": config.scheduler_reserve_full_isl,
        "async_scheduling": bool(config.async_scheduling),
    }


def _recording(base: Any) -> Any:
    """A subclass of a scheduler that keeps notes."""

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, *args, **kwargs)
        self._notes = Notes(self)

    def add_request(self: Any, request: Any) -> None:
        tokens = list(request.prompt_token_ids)
        self._notes.write("add", request.request_id, tokens, request.max_tokens, request.priority)
        base.add_request(self, request)

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.monotonic_ns()
        output = base.schedule(self, *args, **kwargs)
        self._notes.step(self, output, began)
        return output

    def update_from_output(self: Any, output: Any, found: Any) -> Any:
        sampled = {
            name: found.sampled_token_ids[row]
            for name, row in found.req_id_to_index.items()
            if row < len(found.sampled_token_ids)
        }
        self._notes.write("out", {name: list(ids) for name, ids in sampled.items()})
        return base.update_from_output(self, output, found)

    def finish_requests(self: Any, request_ids: Any, status: Any) -> Any:
        names = [request_ids] if isinstance(request_ids, str) else list(request_ids or ())
        self._notes.write("drop", [name for name in names if name in self.requests])
        return base.finish_requests(self, request_ids, status)

    def reset_prefix_cache(self: Any, *args: Any, **kwargs: Any) -> bool:
        done = bool(base.reset_prefix_cache(self, *args, **kwargs))
        self._notes.write("reset", done)
        return done

    methods = (add_request, schedule, update_from_output, finish_requests, reset_prefix_cache)
    body: dict[str, Any] = {method.__name__: method for method in methods}
    return type(_NAME, (base,), {"__init__": begin, **body})


def __getattr__(name: str) -> Any:
    """The class, made when the engine asks for it: importing this file imports no engine."""
    if name != _NAME:
        raise AttributeError(name)
    made = globals()[name] = _recording(import_module("vllm.v1.core.sched.scheduler").Scheduler)
    return made
