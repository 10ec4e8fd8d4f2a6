"""Our re-implementations choose as the real programs do, in lockstep with emulated replicas."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from scripts.router_agreement import PAIRS, Pair, agreement, best_renaming, compare, stayed
from scripts.router_lockstep import Choice, Plan
from tests.live.rig import run
from tests.routers.rig import DYNAMO, installed

EXACT = ("vllm-router:round_robin", "vllm-router:cache_aware", "dynamo:round-robin")
EQUAL = [pair for pair in PAIRS if pair.router in EXACT]


@pytest.mark.parametrize("pair", EQUAL, ids=lambda pair: f"{pair.router}, {pair.title}")
def test_every_choice_is_the_real_router_s(pair: Pair) -> None:
    place = {"program": DYNAMO} if pair.router.startswith("dynamo") else {}
    installed(pair.router, **place)
    small = replace(pair, plan=replace(pair.plan, sessions=12, turns=4, workers=8))

    async def test() -> None:
        found = await agreement(small, {**place, "name_sessions": pair.plan.named})
        assert found.turns == 48
        assert found.equal == 48, found.examples

    run(test)


def choices(text: str) -> list[Choice]:
    """As `s0a s0b s1a`: session, then replica; turns are counted."""
    seen: dict[str, int] = {}
    found: list[Choice] = []
    for word in text.split():
        session, replica = word[:-1], word[-1]
        found.append(Choice(session, seen.get(session, 0), replica))
        seen[session] = found[-1].turn + 1
    return found


def test_figures_of_a_comparison() -> None:
    theirs, ours = choices("s0a s1b s0a s1b s0a s1a"), choices("s0a s1a s0a s1a s0b s1a")
    found = compare(Pair("t", "r", "s", plan=Plan()), None, theirs, ours)
    # s0: a=a, a=a, a/b; s1: b/a, b/a, a=a. After an equal one: s0 turns 1 (equal) and 2 (not).
    assert (found.equal, found.turns) == (3, 6)
    assert (found.first_equal, found.first_turns) == (1, 2)
    assert (found.later_equal, found.later) == (1, 2)
    # Theirs: s0 stays twice, s1 once of two; ours: s0 once of two, s1 twice.
    assert found.stayed == (0.75, 0.75)


def test_renaming_undoes_an_exchange_of_names() -> None:
    ours = choices("s0a s1b s2c s0a s1c")
    for names in product("abc", repeat=3):
        if len(set(names)) == 3:
            theirs = [
                replace(c, replica=dict(zip("abc", names, strict=True))[c.replica]) for c in ours
            ]
            assert best_renaming(theirs, ours) == theirs
    assert stayed(ours) == 0.5
