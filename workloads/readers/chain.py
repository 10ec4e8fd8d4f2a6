"""Turns from what recordings give of an agent's calls: how long each prompt and reply was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workloads.model import Segment, ToolCall, TurnSpec


@dataclass(frozen=True, slots=True)
class Call:
    """One model call of a recorded agent; tokens and seconds."""

    prompt: int
    output: int
    cached: int = 0
    """Prompt tokens that the recording's cache served: at least so many were kept."""
    tools: tuple[ToolCall, ...] = ()
    wait_s: float = 0.0
    new_bytes: int | None = None
    """Bytes of the text that came after the reply before."""
    visible: bool = False
    compaction: bool = False
    reply_lost: bool = False
    """The reply was not sent back, whatever the lengths allow."""


def turns_of(calls: Sequence[Call], shared: tuple[Segment, ...] = ()) -> tuple[TurnSpec, ...]:
    """The turns of an agent that appends to its prompt, as far as the lengths allow it.

    A prompt with room for the prompt and reply before keeps both. One with room for the prompt
    alone keeps that: the reply came back rewritten, without its reasoning. A shorter prompt, or
    one known to be a compaction, keeps what the recording's cache served, at least; if that is
    nothing, it starts from `shared` again. Recordings without texts cannot tell more.

    Args:
        calls: in order.
        shared: what first prompts of other sessions start with too; dropped if it does not fit.
    """
    turns: list[TurnSpec] = []
    room = sum(part.tokens for part in shared)
    for index, call in enumerate(calls):
        before = calls[index - 1] if index else None
        kept = 0 if before is None else kept_tokens(before, call)
        start = shared if not kept and call.prompt > room else ()
        turns.append(
            TurnSpec(
                new_tokens=call.prompt - kept - sum(part.tokens for part in start),
                output_tokens=call.output,
                kept_turn=index - 1 if kept else None,
                kept_tokens=kept,
                shared=start,
                new_bytes=None if start else call.new_bytes,
                visible=call.visible,
                tools=call.tools,
                wait_s=call.wait_s,
                compaction=call.compaction or (before is not None and call.prompt < before.prompt),
            )
        )
    return tuple(turns)


def kept_tokens(before: Call, call: Call) -> int:
    """Tokens of the turn before that a prompt starts with, by the rule of turns_of."""
    if not call.compaction:
        if call.prompt >= before.prompt + before.output and not before.reply_lost:
            return before.prompt + before.output
        if call.prompt >= before.prompt:
            return before.prompt
    return min(call.cached, before.prompt, call.prompt)


def parallel(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls, all starting with the first."""
    return tuple(
        ToolCall(call.name, call.seconds, call.hint_s, parallel=index > 0)
        for index, call in enumerate(calls)
    )


class CommonStart:
    """What the first prompts of several sessions start with alike, found from their texts.

    The first session's text is held, and every later one compared with it.
    """

    def __init__(self, name: str) -> None:
        self._name, self._first = name, b""

    def share(self, text: bytes, tokens: int) -> tuple[Segment, ...]:
        """The shared start of a prompt of `tokens` tokens whose text is `text`; none for the
        first session, which there is nothing to compare with."""
        if not self._first:
            self._first = text
            return ()
        size = common_bytes(self._first, text)
        share = min(tokens - 1, tokens * size // max(1, len(text)))
        return (Segment(self._name, share, size),) if share > 0 else ()


def common_bytes(one: bytes, other: bytes) -> int:
    """Bytes that two texts start with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
