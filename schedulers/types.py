"""Values that cross the boundary between drivers, control plane and policies.

Times are integer nanoseconds since the start of the run, token and byte counts are integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

NS = 1_000_000_000


class PromptRun(NamedTuple):
    """A stretch of a prompt: the first `tokens` tokens of the text named `segment`.

    Two prompts share a prefix exactly as far as their runs name the same segments; within the
    last common segment, as far as the shorter run reaches.
    """

    segment: str
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PromptRef:
    """A prompt without its text. `assistant_messages` counts the model's earlier replies in it."""

    runs: tuple[PromptRun, ...]
    assistant_messages: int = 0
    tokens: int = field(init=False)
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", sum(run.tokens for run in self.runs))
        object.__setattr__(self, "bytes", sum(run.bytes for run in self.runs))


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call, as known when it arrives.

    `prompt.tokens` is the driver's best knowledge: exact where it has the tokenizer, otherwise
    estimated from bytes. The number of output tokens is never known.
    """

    id: str
    session: str
    index: int
    """0 for the first turn of the session."""
    prompt: PromptRef
    parent: str | None = None
    """The session that started this one (a sub-agent), if any."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a finished turn. `cached` is part of `prompt`; None means not reported."""

    prompt: int
    cached: int | None
    output: int

    @property
    def total(self) -> int:
        return self.prompt + self.output


@dataclass(frozen=True, slots=True)
class ToolSignal:
    """What the response that started a tool call tells about it.

    `command` is the call's argument text where the driver has it (for parsed sleeps);
    `hint_s` is a duration stated outright (a Terminus `duration`), in seconds.
    """

    name: str
    command: str | None = None
    hint_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReplicaSample:
    """One poll of an engine's gauges. None where the engine does not report it."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """Share of KV blocks held by running requests; cached but idle blocks count as free."""
    prefix_queries: int | None = None
    """Prompt tokens looked up in the prefix cache since start (cumulative)."""
    prefix_hits: int | None = None
    """Of those, found (cumulative)."""
    preemptions: int | None = None
    prompt_tokens: int | None = None
    """Prompt tokens of all requests since start (cumulative, cached ones included)."""
    generation_tokens: int | None = None


class Evidence(NamedTuple):
    """What the gateway knows of a session's KV on a replica: `tokens` resident at time `at`."""

    tokens: int
    at: int
