"""Sessions picked from each cell, small enough to go into a page, for a drill-down."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from results.groups import Group

PER_CELL = 24
"""Sessions kept of each cell: from the fastest to the slowest in equal steps, and failed ones."""
_FAILED = 4


def timelines(group: Group, turns: pd.DataFrame, sessions: pd.DataFrame) -> list[dict[str, Any]]:
    """Of the first finished seed of each scheduler: sessions with the times of their turns.

    Returns:
        One mapping a cell: scheduler, seed, and `sessions`; a session has `turns`, each
        [arrived, dispatched, first token, finished, replica, prompt, cached, output, tools, moved,
        status, prefill replica, prefilled, KV sent, KV received]; times in seconds since the
        session started, rounded to milliseconds. The last four are left off where all are unknown.
    """
    cells = []
    for scheduler in group.schedulers:
        seed = int(group.cells.loc[group.cells["scheduler"] == scheduler, "seed"].min())
        own = sessions[(sessions["scheduler"] == scheduler) & (sessions["seed"] == seed)]
        picked = _pick(own.assign(latency=(own["finished"] - own["started"]) / 1e9))
        theirs = turns[(turns["scheduler"] == scheduler) & (turns["seed"] == seed)]
        theirs = theirs[theirs["session"].isin(picked["session"])].sort_values(["session", "turn"])
        by_session = {str(name): frame for name, frame in theirs.groupby("session")}
        rows: Any = picked.itertuples()
        cells.append(
            {
                "scheduler": scheduler,
                "seed": seed,
                "total": len(own),
                "sessions": [_session(row, by_session.get(row.session)) for row in rows],
            }
        )
    return cells


def _pick(sessions: pd.DataFrame) -> pd.DataFrame:
    finished = sessions[sessions["status"] == "finished"].sort_values(["latency", "session"])
    steps = np.linspace(0, len(finished) - 1, min(PER_CELL, len(finished))).round().astype(int)
    failed = sessions[sessions["status"] != "finished"].head(_FAILED)
    return pd.concat([finished.iloc[np.unique(steps)], failed])


def _session(row: Any, turns: pd.DataFrame | None) -> dict[str, Any]:
    found = [] if turns is None else [_turn(turn, row.started) for turn in turns.itertuples()]
    return {
        "id": row.session,
        "status": row.status,
        "latency": round(row.latency, 3),
        "turns": found,
    }


def _turn(turn: Any, start: int) -> list[Any]:
    def since(moment: Any) -> float | None:
        return None if pd.isna(moment) else round((moment - start) / 1e9, 3)

    legs: list[Any] = [None if pd.isna(turn.prefill_replica) else turn.prefill_replica]
    legs += map(since, (turn.prefilled, turn.kv_sent, turn.kv_received))
    return [
        *map(since, (turn.arrived, turn.dispatched, turn.first_token, turn.finished)),
        None if pd.isna(turn.replica) else turn.replica,
        int(turn.prompt_tokens),
        None if pd.isna(turn.cached_tokens) else int(turn.cached_tokens),
        int(turn.output_tokens),
        round(turn.tool_s, 3),
        bool(turn.moved),
        turn.status,
        *(legs if any(part is not None for part in legs) else []),
    ]
