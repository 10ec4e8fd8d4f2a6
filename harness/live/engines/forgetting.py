"""Between cells: a replica's prefix cache is emptied, and shown to be empty.

1. Warm-up: some generations, so that the first turn of the cell meets no compilation.
2. A text is generated from twice: the second time must find its prefix in the cache. That shows
   that the engine says what it had cached.
3. The cache is reset, and the same text generated from once more: nothing of it may be cached.
4. The cache is reset again, of the probes.

Without this, an arm finds what the arm before it left (vLLM's own benchmark tooling had that).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from harness.live.engines.probe import EngineProbe, probe_text

PROBE_TOKENS = 600
"""Longer than a few blocks of any engine (256 tokens at most). Our choice."""
RESET_TRIES = 20
_RETRY_S = 0.25
"""vLLM refuses while a request of the last cell still holds blocks. Our choice."""


def forget_and_prove(
    probe: EngineProbe,
    cell: str,
    *,
    warm_up: int,
    room: int,
    keeps_nothing: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> Mapping[str, Any]:
    """Empty one replica's prefix cache before a cell.

    Args:
        cell: makes the probes' text differ from that of every other cell.
        warm_up: generations; `room`: tokens of prompt that the engine takes at most.
        keeps_nothing: the replica has no prefix cache (SGLang's decode mode): nothing to prove.

    Returns:
        `empty`: whether that is proved; `why` if not; the cached tokens that each probe found.

    Raises:
        AgentschedError: the engine does not generate.
    """
    tokens = max(min(PROBE_TOKENS, room - 64), 1)
    for number in range(warm_up):
        probe.generate(probe_text(f"warm-up {number} of {cell}", tokens), tokens=8)
    if keeps_nothing:
        return {"empty": True, "why": "keeps no prefix cache", "warm_up": warm_up}
    text = probe_text(f"probe of {cell}", tokens)
    probe.generate(text)
    before = probe.generate(text).cached_tokens
    facts: dict[str, Any] = {"warm_up": warm_up, "cached_before": before}
    if not before:
        why = "the engine does not say what it has cached"
        return {**facts, "empty": False, "why": why}
    if not reset(probe, pause):
        return {**facts, "empty": False, "why": "the engine does not reset its cache"}
    after = probe.generate(text).cached_tokens
    facts["cached_after"] = after
    if after != 0:
        return {**facts, "empty": False, "why": f"{after} tokens were cached after the reset"}
    if not reset(probe, pause):
        return {**facts, "empty": False, "why": "the engine does not reset its cache"}
    return {**facts, "empty": True}


def reset(probe: EngineProbe, pause: Callable[[float], None] = time.sleep) -> bool:
    """Ask until the engine has reset its cache, or for long enough."""
    for attempt in range(RESET_TRIES):
        if probe.forget():
            return True
        if attempt + 1 < RESET_TRIES:
            pause(_RETRY_S)
    return False
