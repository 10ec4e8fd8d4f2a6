"""The relaxed upper bound on decode throughput of a simulated cell, from its own sessions."""

from __future__ import annotations

from collections.abc import Sequence

from harness.sim.engine_types import StepTime
from schedulers.bounds import ThroughputBound, TurnWork, decode_throughput_bound
from workloads.model import Session

PS_PER_S = 10**12


def throughput_bound(
    sessions: Sequence[Session],
    step: StepTime,
    *,
    replicas: int,
    workers: int | None,
    context_limit: int,
    chunk_tokens: int,
) -> ThroughputBound | None:
    """What no scheduler can pass on these sessions, with `replicas` alike.

    None where the bound's model does not hold: open loop, sub-agents (they run beside the
    workers), deadlines (they cut work off), or no session within the context limit.
    """
    if workers is None or any(s.parent or s.deadline_s is not None for s in sessions):
        return None
    work = [turns for s in sessions if (turns := _work(s, context_limit))]
    if not work:
        return None

    def seconds(prefill: int, decodes: int, context: int) -> float:
        chunks = [(prefill, 0)] if prefill else []
        return step.mixed_ps(chunks, decodes, context) / PS_PER_S

    return decode_throughput_bound(
        work, seconds, replicas=replicas, workers=workers, chunk_tokens=chunk_tokens
    )


def _work(session: Session, context_limit: int) -> list[TurnWork]:
    """The session's turns up to the one that would pass the context limit."""
    turns = []
    for spec in session.turns:
        if spec.prompt_tokens + spec.output_tokens > context_limit:
            break
        kept = spec.prompt_tokens - spec.new_tokens
        tools = spec.tool_seconds + spec.wait_s
        turns.append(TurnWork(spec.new_tokens, kept, spec.output_tokens, tools))
    if turns:
        turns[-1] = turns[-1]._replace(tool_s=0.0)
    return turns
