"""The text of a replayed session, so that prefixes repeat exactly as the trace recorded them.

New text is made of known words, four bytes a token; the model's answers are repeated as they
came. A prompt that keeps part of an earlier one keeps that text, cut where the trace says. One that
is cut just before the reply gets the reply rewritten: new words, said by the assistant. So every
prompt holds as many replies as the simulator counts (`workloads.model.PromptBuilder`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.live.dialect import encode
from harness.live.words import words
from workloads.model import Session, TurnSpec


class Stretch(NamedTuple):
    """Text of one speaker, `tokens` long by the trace's count."""

    role: str
    text: str
    tokens: int


@dataclass(slots=True)
class SessionText:
    """The prompts of one session, in order: `prompt`, then `answered`, for each turn.

    Args:
        salt: part of every text's name; another salt shares nothing with this one.
    """

    session: Session
    salt: str = ""
    _lines: list[list[Stretch]] = field(default_factory=list)
    _prompt: list[Stretch] = field(default_factory=list)

    def prompt(self, index: int) -> list[Stretch]:
        """The prompt of turn `index`; the same again if it is sent again."""
        turn = self.session.turns[index]
        rewritten = 0
        if turn.kept_turn is None:
            line = [
                Stretch("system", words(f"{self.salt}/{s.id}", s.tokens), s.tokens)
                for s in turn.shared
                if s.tokens > 0
            ]
        else:
            line = _cut(self._lines[turn.kept_turn], turn.kept_tokens)
            rewritten = _rewritten(self.session.turns[turn.kept_turn], turn)
        name = f"{self.salt}/{self.session.id}#{index}"
        if rewritten > 0:
            line.append(Stretch("assistant", words(name, rewritten), rewritten))
        if (rest := turn.new_tokens - rewritten) > 0:
            line.append(Stretch("user", words(name, rest, rewritten), rest))
        self._prompt = line
        return line

    def answered(self, text: str) -> None:
        """The model's answer to the prompt last made."""
        tokens = self.session.turns[len(self._lines)].output_tokens
        self._lines.append([*self._prompt, Stretch("assistant", text, tokens)])


def _rewritten(before: TurnSpec, turn: TurnSpec) -> int:
    """New tokens that are the reply of the turn before, rewritten: as long as it was, if there is
    room for the user's words behind it."""
    if turn.kept_tokens != before.prompt_tokens:
        return 0
    return min(before.output_tokens, max(turn.new_tokens - 1, min(turn.new_tokens, 1)))


def _cut(line: list[Stretch], tokens: int) -> list[Stretch]:
    kept: list[Stretch] = []
    left = tokens
    for stretch in line:
        if left <= 0:
            break
        if stretch.tokens <= left:
            kept.append(stretch)
        else:
            # The text of an answer may not be four bytes a token: cut in proportion.
            part = stretch.text[: len(stretch.text) * left // stretch.tokens]
            kept.append(Stretch(stretch.role, part, left))
        left -= stretch.tokens
    return kept


def chat_messages(line: list[Stretch]) -> list[dict[str, Any]]:
    """Messages of a chat request; stretches of one speaker become parts of one message.

    But each reply is a message of its own, an empty one too.
    """
    messages: list[dict[str, Any]] = []
    for role, text, _ in line:
        if not text and role != "assistant":
            continue
        last = messages[-1] if messages else None
        if last is None or last["role"] != role or role == "assistant":
            messages.append({"role": role, "content": text})
            continue
        parts = last["content"]
        if isinstance(parts, str):
            parts = last["content"] = [{"type": "text", "text": parts}]
        parts.append({"type": "text", "text": text})
    return messages


def chat_body(
    model: str, line: list[Stretch], output_tokens: int, extra: Mapping[str, Any]
) -> bytes:
    """A streamed chat request that is answered with exactly so many tokens."""
    return encode(
        {
            "model": model,
            "messages": chat_messages(line),
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": output_tokens,
            "min_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            **extra,
        }
    )
