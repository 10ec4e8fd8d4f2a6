"""What an emulated engine answers: made-up words of the asked-for length, or a script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from agentsched import InputError
from harness.live.dialect import Reading, RequestError, encode
from harness.live.gauges import KvTransfers
from harness.live.words import BYTES_PER_TOKEN, words
from schedulers.types import ReplicaSample

Script = Sequence["ScriptLine"]


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """The answer to a prompt with as many earlier answers in it as lines stand before this."""

    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Tool calls as (name, arguments as JSON text)."""
    tokens: int | None = None
    """None: as many as the text is long."""
    task: str | None = None
    """Only for conversations with this text in a prompt; None: for all that no other line names."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, known from the start and shown as the engine gets on with it."""

    text: str
    tokens: int
    calls: tuple[tuple[str, str], ...]
    finish_reason: str

    def token(self, index: int) -> str:
        """The text of one token: an equal share of the whole."""
        size, tokens = len(self.text), self.tokens
        return self.text[size * index // tokens : size * (index + 1) // tokens]

    def call_deltas(self, number: int) -> list[dict[str, Any]]:
        return [{"index": i, **call} for i, call in enumerate(self.calls_whole(number))]

    def calls_whole(self, number: int) -> list[dict[str, Any]]:
        return [
            {
                "id": f"call-{number}-{index}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for index, (name, arguments) in enumerate(self.calls)
        ]


def plan_answer(
    reading: Reading,
    prompt_tokens: int,
    limit: int,
    *,
    default: int,
    script: Script | None,
    seed: str,
) -> Answer:
    """Decide on the answer to a request.

    The request's `emulate` field may name the tools to call: {"tool_calls": [{name, arguments}]}.

    Raises:
        RequestError: it asks for more tokens than the model can hold, or for a wrong number.
    """
    body = reading.body
    most, least = _count(body, "max_completion_tokens"), _count(body, "min_tokens") or 0
    most = most if most is not None else _count(body, "max_tokens")
    room = limit - prompt_tokens
    if room < 1 or (most is not None and most > room):
        asked = f" and {most} output tokens were asked for" if most is not None else ""
        raise RequestError(
            400,
            f"This model's maximum context length is {limit} tokens; the prompt has "
            f"{prompt_tokens}{asked}",
        )
    if most is not None and (most < 1 or least > most):
        raise RequestError(400, f"max_tokens must be at least 1 and min_tokens, got {most}")
    calls = _asked_calls(body)
    lines = _lines_for(script, reading) if script else ()
    if lines:
        line = lines[min(len(reading.replies), len(lines) - 1)]
        own = max(1, round(len(line.content.encode()) / BYTES_PER_TOKEN))
        tokens = min(line.tokens or own, most or room)
        calls = calls or line.calls
        return Answer(line.content, tokens, calls, "tool_calls" if calls else "stop")
    tokens = most if most is not None and body.get("ignore_eos") else default
    tokens = max(min(tokens, most or room), least)
    reason = "tool_calls" if calls else "length" if tokens == most else "stop"
    return Answer(words(f"answer {seed} {tokens}", tokens), tokens, calls, reason)


class ScriptBook(list[ScriptLine]):
    """A script, looked up by task: one may hold thousands of tasks."""

    @cached_property
    def by_task(self) -> dict[str | None, list[ScriptLine]]:
        found: dict[str | None, list[ScriptLine]] = {}
        for line in self:
            found.setdefault(line.task, []).append(line)
        return found

    @cached_property
    def names(self) -> re.Pattern[str]:
        """Finds the names of tasks, a longer one before those that it begins with."""
        tasks = sorted((task for task in self.by_task if task is not None), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, tasks)) or "(?!)")


def _lines_for(script: Script, reading: Reading) -> Script:
    """The script of this conversation: of the task that its prompts name first, or for all."""
    book = script if isinstance(script, ScriptBook) else ScriptBook(script)
    for piece in reading.pieces:
        named = book.names.findall(piece.text) if piece.role != "assistant" else ()
        if named:
            return book.by_task[max(named, key=lambda name: (len(name), name))]
    return book.by_task.get(None, ())


def _count(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RequestError(400, f"`{name}` must be a whole number, not {value!r}")
    return value


def _asked_calls(body: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    wish = body.get("emulate")
    calls = wish.get("tool_calls") if isinstance(wish, dict) else None
    found: list[tuple[str, str]] = []
    for call in calls if isinstance(calls, list) else ():
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise RequestError(400, "`emulate.tool_calls` must hold objects with a `name`")
        arguments = call.get("arguments", {})
        text = arguments if isinstance(arguments, str) else encode(arguments).decode()
        found.append((call["name"], text))
    return tuple(found)


def read_script(path: Path) -> ScriptBook:
    """A script: JSON Lines of {"content", "tool_calls": [{"name", "arguments"}], "tokens", "task"}.

    Raises:
        InputError: names file and line.
    """
    lines = ScriptBook()
    try:
        texts = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", "check the path", file=path) from None
    for number, text in enumerate(texts, 1):
        if text.strip():
            lines.append(_script_line(path, number, text))
    if not lines:
        raise InputError("the script is empty", "write one answer a line", file=path)
    return lines


def _script_line(path: Path, number: int, text: bytes) -> ScriptLine:
    remedy = 'as {"content": "text", "tool_calls": [{"name": "bash", "arguments": {}}]}'
    try:
        line = orjson.loads(text)
        calls = _asked_calls({"emulate": line})
        content, tokens, task = line.get("content", ""), line.get("tokens"), line.get("task")
    except (orjson.JSONDecodeError, AttributeError) as error:
        raise InputError(f"not an answer: {error}", remedy, file=path, line=number) from None
    except RequestError as error:
        raise InputError(error.message, remedy, file=path, line=number) from None
    if not isinstance(content, str) or not (tokens is None or (type(tokens) is int and tokens > 0)):
        raise InputError("`content` must be text, `tokens` above 0", remedy, file=path, line=number)
    if task is not None and not (isinstance(task, str) and task):
        raise InputError("`task` must be text", remedy, file=path, line=number)
    return ScriptLine(content, calls, tokens, task)


def engine_metrics(
    sample: ReplicaSample,
    model: str,
    block_size: int,
    blocks: int,
    kv: KvTransfers | None = None,
) -> bytes:
    """vLLM's metrics page for a sample, with what its NIXL connector adds."""
    label = f'{{engine="0",model_name="{model}"}}'
    rows = [
        ("num_requests_running", "gauge", sample.running),
        ("num_requests_waiting", "gauge", sample.waiting),
        ("kv_cache_usage_perc", "gauge", sample.kv_usage),
        ("prefix_cache_queries_total", "counter", sample.prefix_queries),
        ("prefix_cache_hits_total", "counter", sample.prefix_hits),
        ("num_preemptions_total", "counter", sample.preemptions),
        ("prompt_tokens_total", "counter", sample.prompt_tokens),
        ("generation_tokens_total", "counter", sample.generation_tokens),
    ]
    lines: list[str] = []
    if kv is not None:
        for name, total in (("xfer_time_seconds", kv.seconds), ("bytes_transferred", kv.bytes)):
            lines.append(f"# TYPE vllm:nixl_{name} histogram")
            lines.append(f"vllm:nixl_{name}_sum{label} {total}")
            lines.append(f"vllm:nixl_{name}_count{label} {kv.count}")
    for name, kind, value in rows:
        lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{label} {value}"]
    lines += [
        "# TYPE vllm:cache_config_info gauge",
        f'vllm:cache_config_info{{block_size="{block_size}",engine="0",'
        f'num_gpu_blocks="{blocks}"}} 1.0',
    ]
    return ("\n".join(lines) + "\n").encode()
