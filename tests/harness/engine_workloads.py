"""Random workloads and a step-time model that put an engine under stress."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from harness.sim.engine_types import DecodePiece

Segments = list[tuple[str, int]]


@dataclass(frozen=True)
class CoarseTime:
    """Step times with odd numbers and several linear pieces."""

    unit: int
    cell: int

    def decode_piece(self, decodes: int, context_sum: int) -> DecodePiece:
        cell = context_sum // self.cell
        slope = self.unit * (3 + cell % 3)
        return DecodePiece(self.unit * (101 + 7 * decodes), slope, (cell + 1) * self.cell)

    def mixed_ps(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> int:
        prefill = sum(11 * new + computed + new * computed for new, computed in chunks)
        return self.unit * (211 + prefill + 13 * decodes + 3 * context_sum)


@dataclass(frozen=True)
class Action:
    at: int
    kind: str
    id: int
    text: tuple[tuple[str, int], ...] = ()
    prompt: int = 0
    output: int = 0
    priority: int = 0
    prefill_only: bool = False
    keep_blocks: bool = False
    remote: int = 0


def workload(rng: random.Random, count: int, spread: int, longest: int) -> list[Action]:
    """Sessions that grow turn by turn, forks, twins with one text, aborts, a lost replica."""
    actions: list[Action] = []
    texts: list[Segments] = [[("system", rng.randint(1, longest))]]
    now = 0
    for ident in range(count):
        now += rng.choice((0, 0, rng.randint(0, spread)))
        base = rng.choice(texts)
        if rng.random() < 0.3:
            base = _cut(base, rng.randint(0, sum(t for _, t in base)))
        if rng.random() < 0.85:
            own = rng.choice((f"u{ident}", f"u{ident}", f"common{rng.randrange(3)}"))
            text = _join(base, own, rng.randint(1, longest))
        else:
            text = base if base else [("x", 1)]
        prompt = sum(tokens for _, tokens in text)
        output = rng.choice((1, 2, rng.randint(1, longest), rng.randint(1, 4 * longest)))
        tail = rng.choice((text[-1][0], f"out{ident}", "shared-output"))
        whole = _join(text, tail, output)
        texts.append(_cut(whole, rng.randint(1, prompt + output)) if rng.random() < 0.2 else whole)
        texts = texts[-6:]
        actions.append(
            Action(
                now,
                "submit",
                ident,
                tuple(whole),
                prompt,
                output,
                rng.randrange(3),
                rng.random() < 0.05,
            )
        )
        if rng.random() < 0.12:
            actions.append(Action(now + rng.randint(0, spread), "abort", rng.randrange(ident + 1)))
        if rng.random() < 0.01:
            actions.append(Action(now + rng.randint(0, spread), "reset", -1))
    return sorted(actions, key=lambda action: action.at)


def twins(rng: random.Random, count: int, spread: int, longest: int) -> list[Action]:
    """A few texts, sent again and again at nearly the same time, some of them ahead of others."""
    actions = []
    for ident in range(count):
        name = f"t{rng.randrange(2)}"
        total = rng.randint(2, 6 * longest)
        prompt = rng.randint(1, total - 1)
        text = ((name, total),)
        at = rng.randrange(4) * spread
        actions.append(Action(at, "submit", ident, text, prompt, total - prompt, rng.randrange(3)))
    return sorted(actions, key=lambda action: action.at)


def crowd(rng: random.Random, count: int, spread: int, longest: int) -> list[Action]:
    """Everything comes at once and grows long: preemptions all the time."""
    actions = []
    for ident in range(count):
        prompt, output = rng.randint(1, longest), rng.randint(1, 8 * longest)
        text = ((f"u{ident}", prompt + output),)
        at = rng.randrange(2) * spread
        actions.append(Action(at, "submit", ident, text, prompt, output, rng.randrange(4)))
    return sorted(actions, key=lambda action: action.at)


STYLES = {"sessions": workload, "twins": twins, "crowd": crowd}


def _join(text: Segments, name: str, tokens: int) -> Segments:
    if text and text[-1][0] == name:
        return [*text[:-1], (name, text[-1][1] + tokens)]
    return [*text, (name, tokens)]


def _cut(text: Segments, tokens: int) -> Segments:
    kept: Segments = []
    for name, count in text:
        take = min(count, tokens)
        if take:
            kept.append((name, take))
        tokens -= take
    return kept
