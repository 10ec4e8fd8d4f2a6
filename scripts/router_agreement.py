"""How often rivals' own programs and our re-implementations of them choose the same replica.

python -m scripts.router_agreement [--programs FOLDER] [--thunderagent CHECKOUT [--python PROGRAM]]
    [--dynamo FOLDER] [--only TEXT] [--page docs/routers.md] [--json FILE]

The same sessions go through the original and through our gateway, in front of the same emulated
replicas. These run on a virtual clock in lockstep with the clients: a request is sent, everybody
waits until it has reached a replica or its answer has come back, and only then the clock goes on.
So both sides see the same loads at the same moments, however fast their programs are, and what
differs are the rules. ThunderAgent's rounds go by the wall clock; it is compared under memory
pressure in real time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import uvloop

from agentsched import UsageError
from harness.live.routers import find_router
from scripts.router_lockstep import Choice, Plan, play_original, play_ours

REPLICAS = 3
BEGIN, END = "<!-- agreement -->", "<!-- end of agreement -->"
TIGHT = {"balance_abs_threshold": 2, "balance_rel_threshold": 1.1}
OURS_TIGHT = {"balance_abs": 2, "balance_rel": 1.1}
CACHE_AWARE = "cache-aware"


@dataclass(frozen=True, slots=True)
class Pair:
    """An original and what stands for it."""

    title: str
    router: str
    scheduler: str
    original: Mapping[str, Any] = field(default_factory=dict)
    ours: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan = field(default_factory=Plan)
    renamed: bool = False
    """Replicas of ours are renamed to fit best: the original has an order that it does not show."""


SMG_CACHE = {
    "imbalance_gate": "average",
    "owner": "random-least-load",
}
PAIRS = (
    Pair("round robin", "vllm-router:round_robin", "round-robin"),
    Pair("cache aware, sessions not named", "vllm-router:cache_aware", CACHE_AWARE),
    Pair(
        "cache aware, sessions not named, uneven from 3 requests on",
        "vllm-router:cache_aware",
        CACHE_AWARE,
        TIGHT,
        OURS_TIGHT,
    ),
    Pair(
        "cache aware, sessions named",
        "vllm-router:cache_aware",
        CACHE_AWARE,
        plan=Plan(named=True),
    ),
    Pair(
        "consistent hash",
        "vllm-router:consistent_hash",
        "consistent-hash",
        plan=Plan(named=True),
    ),
    Pair("round robin", "smg:round_robin", "round-robin", renamed=True),
    Pair("cache aware", "smg:cache_aware", CACHE_AWARE, ours=SMG_CACHE, renamed=True),
    Pair(
        "cache aware, uneven from 3 requests on",
        "smg:cache_aware",
        CACHE_AWARE,
        TIGHT,
        {**SMG_CACHE, **OURS_TIGHT},
        renamed=True,
    ),
    Pair(
        "consistent hash",
        "smg:consistent_hashing",
        "consistent-hash",
        ours={"when_lost": "walk"},
        plan=Plan(named=True),
    ),
    Pair("round robin", "dynamo:round-robin", "round-robin", renamed=True),
    Pair("KV events", "dynamo:kv", "dynamo", plan=Plan(kv_events=True, heard_s=0.1), renamed=True),
    Pair(
        "KV events, memory for half of the sessions",
        "dynamo:kv",
        "dynamo",
        plan=Plan(kv_events=True, heard_s=0.1, kv_blocks=500),
        renamed=True,
    ),
    Pair(
        "no KV events: it predicts what they hold",
        "dynamo:kv",
        "dynamo",
        # Its predictions go by the wall clock: none is to be forgotten here.
        {"kv_events": False, "args": ["--router-ttl-secs", "100000"]},
        plan=Plan(heard_s=0.1),
        renamed=True,
    ),
    Pair(
        "enough memory",
        "thunderagent:tr",
        "thunderagent-as-shipped",
        plan=Plan(named=True),
    ),
    Pair(
        "memory for half of the sessions, rounds every second, real time",
        "thunderagent:tr",
        "thunderagent-as-shipped",
        {"scheduler_interval": 1.0},
        {"interval_s": 1.0},
        Plan(named=True, lockstep=False, kv_blocks=500, sessions=18),
    ),
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """What came of one pair."""

    pair: Pair
    version: str | None
    turns: int
    equal: int
    first_turns: int
    first_equal: int
    later: int
    """Turns whose session's turn before went to the same replica on both sides."""
    later_equal: int
    stayed: tuple[float, float]
    """Share of later turns on the replica of the turn before: the original's, ours."""
    examples: list[str]
    itself: int | None = None
    """Equal choices of two runs of the original, where these are not bound to be equal."""


def compare(
    pair: Pair, version: str | None, theirs: Sequence[Choice], ours: Sequence[Choice]
) -> Agreement:
    """Turns that both played, by (session, turn)."""
    if pair.renamed:
        ours = best_renaming(theirs, ours)
    mine = {(choice.session, choice.turn): choice for choice in ours}
    both = [(t, mine[t.session, t.turn]) for t in theirs if (t.session, t.turn) in mine]
    firsts = [(t, o) for t, o in both if t.turn == 0]
    same = {(t.session, t.turn) for t, o in both if t.replica == o.replica}
    later = [(t.session, t.turn) for t, _ in both if (t.session, t.turn - 1) in same]
    examples = [
        f"{t.session} turn {t.turn}: {t.replica} against {o.replica} ({o.why or 'no reason'})"
        for t, o in both
        if t.replica != o.replica
    ]
    return Agreement(
        pair,
        version,
        len(both),
        len(same),
        len(firsts),
        sum(t.replica == o.replica for t, o in firsts),
        len(later),
        sum(turn in same for turn in later),
        (stayed(theirs), stayed(ours)),
        examples[:5],
    )


def best_renaming(theirs: Sequence[Choice], ours: Sequence[Choice]) -> list[Choice]:
    """Our choices with the names of replicas exchanged so that most are equal."""
    wanted = {(choice.session, choice.turn): choice.replica for choice in theirs}
    names = sorted(set(wanted.values()) | {choice.replica for choice in ours})
    best: list[Choice] = []
    most = -1
    for other in permutations(names):
        naming = dict(zip(names, other, strict=True))
        renamed = [replace(choice, replica=naming[choice.replica]) for choice in ours]
        equal = sum(wanted.get((c.session, c.turn)) == c.replica for c in renamed)
        if equal > most:
            most, best = equal, renamed
    return best


def stayed(choices: Sequence[Choice]) -> float:
    """Share of turns after a session's first that went where the turn before went."""
    last: dict[str, str] = {}
    same = later = 0
    for choice in sorted(choices, key=lambda c: c.turn):
        if choice.session in last:
            later += 1
            same += last[choice.session] == choice.replica
        last[choice.session] = choice.replica
    return same / later if later else 1.0


async def agreement(pair: Pair, settings: Mapping[str, Any]) -> Agreement:
    with tempfile.TemporaryDirectory() as folder:
        front = find_router(pair.router, {**settings, **pair.original}, Path(folder))
        theirs, order = await play_original(front, pair.plan, REPLICAS)
        ours = await play_ours(pair.scheduler, pair.ours, pair.plan, order)
        result = compare(pair, front.found.version, theirs, ours)
        if pair.plan.lockstep:
            return result
        front = find_router(pair.router, {**settings, **pair.original}, Path(folder))
        again, _ = await play_original(front, pair.plan, REPLICAS)
        return replace(result, itself=compare(pair, None, theirs, again).equal)


def table(rows: Sequence[Agreement]) -> str:
    lines = [
        "| original | scenario | ours | same replica | of first turns "
        "| of turns after an equal one | stayed: original, ours |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        pair, version = row.pair, f" {row.version}" if row.version else ""
        router, _, policy = pair.router.partition(":")
        settings = ", ".join(f"{k}={v}" for k, v in pair.ours.items())
        mine = f"`{pair.scheduler}`" + (f" ({settings})" if settings else "")
        itself = f"; original against itself {row.itself}" if row.itself is not None else ""
        lines.append(
            f"| {router}{version} `{policy}` | {pair.title} | {mine} "
            f"| {row.equal} of {row.turns} ({row.equal / row.turns:.0%}){itself} "
            f"| {row.first_equal} of {row.first_turns} | {row.later_equal} of {row.later} "
            f"| {row.stayed[0]:.0%}, {row.stayed[1]:.0%} |"
        )
    return "\n".join(lines) + "\n"


def replace_table(page: Path, text: str) -> None:
    """Put the table in place of the one between the page's marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text}{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", default=None, help="folder of the routers' programs")
    parser.add_argument("--thunderagent", default=None, help="a checkout of ThunderAgent")
    parser.add_argument("--python", default=None, help="interpreter with what ThunderAgent needs")
    parser.add_argument("--dynamo", default=None, help="bin folder of Dynamo's environment")
    parser.add_argument("--only", default="", help="pairs whose router or title has this text")
    parser.add_argument("--page", type=Path, default=None, help="page whose table is replaced")
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    rows: list[Agreement] = []
    for pair in PAIRS:
        if given.only not in f"{pair.router} {pair.title}":
            continue
        name = pair.router.partition(":")[0]
        thunder = name == "thunderagent"
        programs = {"thunderagent": given.thunderagent, "dynamo": given.dynamo}
        settings = {"program": programs.get(name, given.programs)}
        settings |= {"python": given.python} if thunder else {}
        settings |= {"name_sessions": pair.plan.named}
        try:
            row = uvloop.run(agreement(pair, settings))
        except UsageError as error:
            print(f"{pair.router}, {pair.title}: left out: {error.message}", flush=True)
            continue
        rows.append(row)
        print(f"{pair.router}, {pair.title}: {row.equal} of {row.turns}", flush=True)
        print("".join(f"  {line}\n" for line in row.examples), end="", flush=True)
    text = table(rows)
    print(text)
    if given.json is not None:
        figures = [(r.pair.router, r.pair.title, r.equal, r.turns, r.examples) for r in rows]
        given.json.write_text(json.dumps(figures, indent=1) + "\n")
    if given.page is not None:
        replace_table(given.page, text)


if __name__ == "__main__":
    main()
