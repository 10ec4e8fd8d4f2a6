"""Multi-turn traces that another simulator can read too: prompts as lists of block ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from harness.sim.content import ContentIndex
from workloads.model import PromptBuilder, Segment, Session, TurnSpec


@dataclass(frozen=True, slots=True)
class Shape:
    """A generated trace; ranges are even distributions, tokens and seconds."""

    sessions: int
    turns: int
    spread_s: float
    """Sessions arrive evenly over this time."""
    shared_tokens: int = 2048
    """All sessions begin alike."""
    new_tokens: tuple[int, int] = (200, 2000)
    output_tokens: tuple[int, int] = (50, 300)
    wait_s: tuple[float, float] = (0.2, 3.0)


def generate(shape: Shape, seed: int) -> list[Session]:
    """Sessions that arrive by themselves; each prompt is all of the turn before and new text."""
    rng = Random(seed)
    sessions = []
    for number in range(shape.sessions):
        turns: list[TurnSpec] = []
        for index in range(shape.turns):
            new, output = rng.randint(*shape.new_tokens), rng.randint(*shape.output_tokens)
            wait = round(rng.uniform(*shape.wait_s), 3)
            if index == 0:
                shared = (Segment("system", shape.shared_tokens, 4 * shape.shared_tokens),)
                turns.append(TurnSpec(new, output, shared=shared, wait_s=wait))
            else:
                kept = turns[-1].prompt_tokens + turns[-1].output_tokens
                turns.append(TurnSpec(new, output, index - 1, kept, wait_s=wait))
        arrival = round(shape.spread_s * number / shape.sessions, 3)
        sessions.append(
            Session(f"s{number}", tuple(turns), "multi-turn", "generated", arrival_s=arrival)
        )
    return sessions


def arriving(sessions: Sequence[Session], spread_s: float) -> list[Session]:
    """Sessions of a workload, arriving evenly over `spread_s`.

    Tool calls become plain waiting, in whole milliseconds; sub-agents are left out.
    """
    roots = [session for session in sessions if session.parent is None]
    return [
        replace(
            session,
            turns=tuple(
                replace(turn, tools=(), wait_s=round(turn.tool_seconds + turn.wait_s, 3))
                for turn in session.turns
            ),
            arrival_s=round(spread_s * number / len(roots), 3),
            setup_s=0.0,
            deadline_s=None,
        )
        for number, session in enumerate(roots)
    ]


def write_mooncake(sessions: Sequence[Session], path: Path, block_size: int = 16) -> None:
    """The trace in Dynamo's Mooncake format with sessions: one JSON object a turn, block ids,
    delays after the turn before in milliseconds, and the tokens that are generated."""
    with path.open("w", encoding="utf-8") as file:
        for row in _rows(sessions, block_size):
            file.write(json.dumps(row, separators=(",", ":")) + "\n")


def _rows(sessions: Sequence[Session], block_size: int) -> Iterator[dict[str, object]]:
    index = ContentIndex(block_size)
    ids: dict[tuple[int, int], int] = {}
    for session in sessions:
        prompts = PromptBuilder(session).prompts()
        for number, (turn, prompt) in enumerate(zip(session.turns, prompts, strict=True)):
            tokens = turn.prompt_tokens + turn.output_tokens
            # Up to a whole block, so that the last one has an id too.
            tail = (prompt.output_segment, turn.output_tokens + -tokens % block_size)
            line = index.intern([*((s.id, s.tokens) for s in prompt.segments), tail])
            blocks = [
                ids.setdefault((run.branch, block), len(ids) + 1)
                for run in line.runs
                for block in range(run.lo, run.hi)
            ]
            # The replay makes `block_size` tokens of each id, all of them the id itself.
            made = [blocks[at // block_size] for at in range(turn.prompt_tokens, tokens)]
            when: dict[str, object] = (
                {"delay": round(session.turns[number - 1].wait_s * 1000)}
                if number
                else {"timestamp": round((session.arrival_s or 0.0) * 1000)}
            )
            yield {
                "session_id": session.id,
                **when,
                "input_length": turn.prompt_tokens,
                "output_length": turn.output_tokens,
                "hash_ids": blocks[: -(-turn.prompt_tokens // block_size)],
                "output_token_ids": made,
            }
