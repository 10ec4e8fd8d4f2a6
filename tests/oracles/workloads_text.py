"""Prompts as literal lists of tokens: slow, and obviously what the trace says."""

from __future__ import annotations

from collections.abc import Sequence

from workloads.model import Session

Token = tuple[str, int, str, int]


def literal_prompts(session: Session) -> tuple[list[list[Token]], list[list[Token]]]:
    """Every turn's prompt, and prompt with output, token by token."""
    prompts: list[list[Token]] = []
    lines: list[list[Token]] = []
    for number, turn in enumerate(session.turns):
        prompt: list[Token] = []
        if turn.kept_turn is None:
            for part in turn.shared:
                prompt.extend((part.id, -1, "shared", i) for i in range(part.tokens))
        else:
            prompt.extend(lines[turn.kept_turn][: turn.kept_tokens])
        prompt.extend((session.id, number, "new", i) for i in range(turn.new_tokens))
        prompts.append(prompt)
        lines.append(prompt + [(session.id, number, "out", i) for i in range(turn.output_tokens)])
    return prompts, lines


def common_prefix(one: Sequence[Token], other: Sequence[Token]) -> int:
    """Tokens that two lines start with alike."""
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length


def literal_replies(session: Session) -> list[int]:
    """Earlier replies in every turn's prompt, counted at their first token."""
    marks: list[list[int]] = []
    counts: list[int] = []
    for turn in session.turns:
        mark: list[int] = [0] * turn.prompt_tokens
        if turn.kept_turn is not None:
            before = session.turns[turn.kept_turn]
            kept = marks[turn.kept_turn][: turn.kept_tokens]
            mark[: len(kept)] = kept
            if turn.kept_tokens >= before.prompt_tokens < turn.prompt_tokens:
                mark[before.prompt_tokens] += 1
        counts.append(sum(mark))
        marks.append(mark + [0] * turn.output_tokens)
    return counts
