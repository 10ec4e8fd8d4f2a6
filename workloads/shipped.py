"""Recorded sessions that come with the product, and how they were made from the raw recordings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workloads.model import Session
from workloads.readers.convert import convert, quantile_sample

WEKA_SESSIONS = 120
"""Top-level Weka sessions shipped, of 474: all would be large, 120 keep every length."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """One recorded workload in workloads/data."""

    name: str
    file: str
    workloads: frozenset[str] | None
    """Workloads of the file that belong to it; None: all."""
    source: str
    licence: str
    note: str


_LMCACHE = (
    "github.com/LMCache/lmcache-agent-trace at 16a14ada, folders miniswe and magagent",
    "Apache-2.0",
)

SHIPPED: tuple[Shipped, ...] = (
    Shipped(
        "lmcache-agents",
        "lmcache-agents.jsonl.gz",
        None,
        *_LMCACHE,
        "12 mini-swe-agent sessions (SWE-bench, 30 calls at most) and 16 Magentic-One sessions "
        "(GAIA); tool time is an upper bound, split from model time by a rule",
    ),
    Shipped(
        "lmcache-mini-swe-agent",
        "lmcache-agents.jsonl.gz",
        frozenset({"lmcache-mini-swe-agent"}),
        *_LMCACHE,
        "the 12 mini-swe-agent sessions of lmcache-agents",
    ),
    Shipped(
        "weka-claude-code",
        "weka-claude-code.jsonl.gz",
        None,
        "github.com/callanjfox/kv-cache-tester traces/ at 94f6046d",
        "Apache-2.0",
        f"{WEKA_SESSIONS} interactive Claude Code sessions at even ranks of length, and their "
        "sub-agents; tool time holds permission prompts and idle people; most contexts pass 40,960",
    ),
)


def shipped_file(entry: Shipped) -> Path:
    """Where the trace of a shipped workload lies."""
    return Path(__file__).parent / "data" / entry.file


def build_shipped(lmcache: Path, weka: Path) -> dict[str, list[Session]]:
    """The sessions of every shipped file, from the raw recordings.

    The same as `agentsched trace convert LMCACHE` and `agentsched trace convert WEKA --sample 120`.

    Args:
        lmcache: `turns.jsonl` of the LMCache agent traces, or its folder.
        weka: `turns.jsonl[.gz]` of the Weka traces, or its folder; `sessions.jsonl` beside it.
    """
    return {
        "lmcache-agents.jsonl.gz": convert(lmcache, "lmcache"),
        "weka-claude-code.jsonl.gz": quantile_sample(convert(weka, "weka"), WEKA_SESSIONS),
    }
