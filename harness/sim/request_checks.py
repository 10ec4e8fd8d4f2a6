"""What an engine refuses, and what it must never meet."""

from __future__ import annotations

from agentsched import SimulationError
from harness.sim.engine_types import EngineParams, EngineRequest


def check_request(request: EngineRequest, known: bool) -> None:
    """Refuse what a driver must not submit; `known`: the id is in flight already.

    Raises:
        SimulationError: with what is wrong about it.
    """
    if known:
        raise SimulationError(
            f"request {request.id} was submitted twice", "use a new id for every attempt"
        )
    if request.prompt_tokens < 1 or request.output_tokens < 1:
        raise SimulationError(
            f"request {request.id} has {request.prompt_tokens} prompt tokens and asks for "
            f"{request.output_tokens}",
            "both must be 1 or more",
        )
    output = 1 if request.prefill_only else request.output_tokens
    if request.line.tokens < request.prompt_tokens + output:
        raise SimulationError(
            f"the text of request {request.id} has {request.line.tokens} tokens, its prompt "
            f"and output {request.prompt_tokens + output}",
            "intern prompt and output together",
        )


def never_runs(params: EngineParams, blocks: int, prompt: int, final: int) -> str | None:
    """Why a request of `final` tokens in the end can never be served; None if it can."""
    limit = params.max_model_len
    if limit is not None and final > limit:
        return f"prompt {prompt} + output {final - prompt} tokens exceed the maximum length {limit}"
    # The last token is sampled, never fed: its KV is not needed.
    room = blocks - params.sequence_blocks
    if -(-(final - 1) // params.block_size) > room:
        capacity = max(room, 0) * params.block_size
        return f"prompt {prompt} + output {final - prompt} tokens exceed the KV cache ({capacity})"
    if not params.chunked_prefill and final - 1 > params.max_num_batched_tokens:
        return (
            f"prompt {prompt} + output {final - prompt} tokens exceed the step budget "
            f"{params.max_num_batched_tokens} with chunked prefill off"
        )
    return None


def stalled(waiting: int) -> SimulationError:
    """The error for an engine that has work and cannot start any."""
    return SimulationError(
        f"the engine cannot start any of {waiting} waiting requests though none runs",
        "this is a bug in the engine simulator; please report it",
    )
