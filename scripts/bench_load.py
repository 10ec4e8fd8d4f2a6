"""Streams against an endpoint, for the gateway benchmark; prints one JSON object.

python -m scripts.bench_load URL --streams 160 --turns 3 [--tokens 64] [--prompt 400]
    [--spread SECONDS | --rate A_SECOND]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field

from harness.live.lag import percentile
from harness.live.replay import ReplaySettings
from harness.live.replay_run import replay
from results.records import DecisionRecord, ReplicaRecord, SessionRecord, TurnRecord
from workloads.model import Session, TurnSpec


@dataclass(slots=True)
class Turns:
    """Keeps the turns and forgets the rest."""

    turns: list[TurnRecord] = field(default_factory=list)

    def turn(self, record: TurnRecord) -> None:
        self.turns.append(record)

    def session(self, record: SessionRecord) -> None: ...
    def replica(self, record: ReplicaRecord) -> None: ...
    def decision(self, record: DecisionRecord) -> None: ...


def sessions(
    streams: int, turns: int, tokens: int, prompt: int, rate: float | None
) -> list[Session]:
    """Sessions of single-message turns: each prompt is new text.

    Args:
        rate: sessions started a second; None: no arrival times.
    """
    turn = TurnSpec(prompt, tokens)
    return [
        Session(
            f"stream-{prompt}-{number}",
            (turn,) * turns,
            "bench",
            "generated",
            arrival_s=None if rate is None else number / rate,
        )
        for number in range(streams)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=400, help="prompt tokens, 4 bytes each")
    parser.add_argument("--spread", type=float, default=0.0, help="seconds over which to start")
    parser.add_argument("--rate", type=float, default=None, help="streams started a second")
    given = parser.parse_args()
    kept = Turns()
    summary = replay(
        given.url,
        sessions(given.streams, given.turns, given.tokens, given.prompt, given.rate),
        workers=given.streams if given.rate is None else None,
        settings=ReplaySettings(model="stub", start_spread_s=given.spread, show_tools=False),
        recorder=kept,
    )
    good = [t for t in kept.turns if t.status == "ok" and t.first_token is not None]
    ttfts = [(t.first_token or 0) - t.arrived for t in good]
    gaps = [t.longest_gap or 0 for t in good]
    tokens = sum(t.output_tokens for t in good)
    print(
        json.dumps(
            {
                "turns": len(kept.turns),
                "ok": len(good),
                "tokens": tokens,
                "ttft_mean_ms": sum(ttfts) / max(1, len(ttfts)) / 1e6,
                "ttft_p50_ms": percentile(ttfts, 50) / 1e6,
                "ttft_p99_ms": percentile(ttfts, 99) / 1e6,
                "gap_p50_ms": percentile(gaps, 50) / 1e6,
                "gap_p99_ms": percentile(gaps, 99) / 1e6,
                "peak_in_flight": summary.peak_in_flight,
                "makespan_s": summary.makespan_ns / 1e9,
                **summary.timing,
            }
        )
    )


if __name__ == "__main__":
    main()
