"""The workload model: a session is a list of turns, and tool calls run between them.

Token counts are those of the trace's own tokenizer; durations are seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Origin = Literal["recorded", "generated"]


class Segment(NamedTuple):
    """The first `tokens` tokens (`bytes` bytes) of the text named `id`."""

    id: str
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call. `parallel` calls start together with the call before them."""

    name: str
    seconds: float
    hint_s: float | None = None
    """Duration stated in the response that starts it (a parsed sleep, a Terminus `duration`)."""
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class TurnSpec:
    """One model call as the trace gives it.

    The prompt is: the first `kept_tokens` tokens of (prompt + output) of turn `kept_turn` of the
    same session, or, with `kept_turn` None, the `shared` segments; then `new_tokens` tokens of
    its own.
    """

    new_tokens: int
    output_tokens: int
    kept_turn: int | None = None
    kept_tokens: int = 0
    shared: tuple[Segment, ...] = ()
    new_bytes: int | None = None
    """Bytes of the new text; None where the trace does not say."""
    visible: bool = False
    """Whether the user sees this turn's output (a session's last turn always counts as visible)."""
    tools: tuple[ToolCall, ...] = ()
    """Calls that run after this turn, before the session's next."""
    wait_s: float = 0.0
    """Time after this turn that is not a tool call (a person reading, client overhead)."""
    compaction: bool = False
    """The conversation was summarised to make this prompt."""

    @property
    def prompt_tokens(self) -> int:
        return self.kept_tokens + sum(s.tokens for s in self.shared) + self.new_tokens

    @property
    def tool_seconds(self) -> float:
        """Wall time of the tool calls: parallel ones overlap, the others follow each other."""
        total = longest = 0.0
        for call in self.tools:
            if not call.parallel:
                total, longest = total + longest, 0.0
            longest = max(longest, call.seconds)
        return total + longest


@dataclass(frozen=True, slots=True)
class Session:
    """One agent on one task."""

    id: str
    turns: tuple[TurnSpec, ...]
    workload: str
    origin: Origin
    parent: str | None = None
    spawn_turn: int | None = None
    """A sub-agent starts when this turn of its parent has finished."""
    arrival_s: float | None = None
    """Open-loop arrival after the start of the run; None: starts when a worker is free."""
    setup_s: float = 0.0
    """Environment set-up before the first turn."""
    deadline_s: float | None = None
    """The harness stops the agent this long after its first turn could start."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text line of one turn: its prompt's segments, and the segment its output extends."""

    segments: tuple[Segment, ...]
    output_segment: str
    """The output's tokens follow the last prompt token in this segment."""
    assistant_messages: int


@dataclass(slots=True)
class PromptBuilder:
    """Names the text of each turn so that equal names mean equal text.

    An append-only session is one growing segment. A prompt that drops or cuts what it had opens a
    new segment after the cut. It holds the earlier replies that begin within what it keeps, and
    that of the turn it keeps if it keeps that turn's whole prompt and goes on: the reply may come
    back rewritten (without its reasoning), as the first of the new tokens.
    """

    session: Session
    bytes_per_token: float = 4.0
    _lines: list[tuple[Segment, ...]] = field(default_factory=list)
    _replies: list[tuple[int, ...]] = field(default_factory=list)
    """For each turn, where the earlier replies in its prompt begin, in tokens, ascending."""

    def prompts(self) -> Iterator[Prompt]:
        """One Prompt a turn, in order."""
        for index in range(len(self.session.turns)):
            yield self._prompt(index)

    def _prompt(self, index: int) -> Prompt:
        turn = self.session.turns[index]
        replies: tuple[int, ...] = ()
        if turn.kept_turn is None:
            base: list[Segment] = [s for s in turn.shared if s.tokens > 0]
            whole = False
        else:
            line = self._lines[turn.kept_turn]
            base = _cut(line, turn.kept_tokens)
            whole = turn.kept_turn == index - 1 and turn.kept_tokens == _tokens(line)
            replies = self._kept_replies(turn)
        own = base[-1].id if whole else f"{self.session.id}#{index}"
        new_bytes = turn.new_bytes
        if new_bytes is None:
            new_bytes = round(turn.new_tokens * self.bytes_per_token)
        prompt = _append(base, own, turn.new_tokens, new_bytes)
        output_bytes = round(turn.output_tokens * self.bytes_per_token)
        self._lines.append(tuple(_append(prompt, own, turn.output_tokens, output_bytes)))
        self._replies.append(replies)
        return Prompt(tuple(prompt), own, len(replies))

    def _kept_replies(self, turn: TurnSpec) -> tuple[int, ...]:
        assert turn.kept_turn is not None
        begins = self._replies[turn.kept_turn]
        reply = self.session.turns[turn.kept_turn].prompt_tokens
        # A prompt that ends where the reply began is the same prompt once more.
        if turn.kept_tokens >= reply and turn.prompt_tokens > reply:
            return (*begins, reply)
        return begins[: bisect_left(begins, turn.kept_tokens)]


def _tokens(line: tuple[Segment, ...]) -> int:
    return sum(segment.tokens for segment in line)


def _cut(line: tuple[Segment, ...], tokens: int) -> list[Segment]:
    kept: list[Segment] = []
    left = tokens
    for segment in line:
        if left <= 0:
            break
        take = min(left, segment.tokens)
        size = segment.bytes if take == segment.tokens else segment.bytes * take // segment.tokens
        kept.append(Segment(segment.id, take, size))
        left -= take
    return kept


def _append(base: list[Segment], name: str, tokens: int, size: int) -> list[Segment]:
    if tokens == 0:
        return list(base)
    if base and base[-1].id == name:
        last = base[-1]
        return [*base[:-1], Segment(name, last.tokens + tokens, last.bytes + size)]
    return [*base, Segment(name, tokens, size)]
