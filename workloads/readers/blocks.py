"""Prompts given as block hashes: equal ids mean equal text up to and including that block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workloads.model import Segment, ToolCall, TurnSpec
from workloads.trace_fields import Fields

BLOCK_SIZES = tuple(1 << power for power in range(4, 13))
"""Blocks that a file may have, in tokens, where nothing says which: 16 to 4096."""


@dataclass(frozen=True, slots=True)
class BlockCall:
    """One request of a session."""

    prompt: int
    output: int
    blocks: Sequence[int | str]
    """Ids of the prompt's blocks, the last of which may be begun only; empty: not recorded."""
    before: int | None
    """Index of the request that this one goes on from; None: it starts anew."""
    tools: tuple[ToolCall, ...] = ()
    wait_s: float = 0.0
    visible: bool = False


@dataclass(frozen=True, slots=True)
class BlockRules:
    """How block hashes become turns."""

    scope: str
    """Ids are unique within it."""
    size: int
    """Tokens of a block."""
    append_output: bool
    """A prompt that keeps every whole block of the one before, and has room, keeps its reply."""
    bytes_per_token: float


def turns_from_blocks(calls: Sequence[BlockCall], rules: BlockRules) -> tuple[TurnSpec, ...]:
    """Turns that share within the session what their blocks share.

    A request that goes on from another keeps the blocks that both start with. One that starts anew
    is made of shared segments, a block each, so that other sessions share them too; what later
    turns add is the session's own.
    """
    turns: list[TurnSpec] = []
    for call in calls:
        before = calls[call.before] if call.before is not None else None
        kept = 0 if before is None else kept_blocks(before, call, rules)
        shared = () if kept else segments(call, rules)
        turns.append(
            TurnSpec(
                new_tokens=call.prompt - kept - sum(part.tokens for part in shared),
                output_tokens=call.output,
                kept_turn=call.before if kept else None,
                kept_tokens=kept,
                shared=shared,
                visible=call.visible,
                tools=call.tools,
                wait_s=call.wait_s,
                compaction=before is not None and call.prompt < before.prompt,
            )
        )
    return tuple(turns)


def kept_blocks(before: BlockCall, call: BlockCall, rules: BlockRules) -> int:
    """Tokens of a request, its reply included, that the one after it starts with."""
    whole = before.prompt + before.output
    if not before.blocks or not call.blocks:
        # Nothing is known but lengths: as an agent that appends.
        return whole if call.prompt >= whole else min(before.prompt, call.prompt)
    same = 0
    for one, other in zip(before.blocks, call.blocks, strict=False):
        if one != other:
            break
        same += 1
    full = before.prompt // rules.size
    if rules.append_output and same >= full and call.prompt >= whole:
        return whole
    return min(same * rules.size, before.prompt, call.prompt)


def segments(call: BlockCall, rules: BlockRules) -> tuple[Segment, ...]:
    """The blocks of a prompt as shared segments."""
    found: list[Segment] = []
    for index, block in enumerate(call.blocks):
        tokens = min(rules.size, call.prompt - rules.size * index)
        size = round(tokens * rules.bytes_per_token)
        found.append(Segment(f"{rules.scope}/{block}", tokens, size))
    return tuple(found)


def block_ids(fields: Fields, prompt: int, size: int) -> list[int | str]:
    """The checked `hash_ids` of a line, one for each block begun; empty where there are none.

    Raises:
        TraceError: they are too few, too many, or no ids.
    """
    blocks = fields.items("hash_ids") if fields.get("hash_ids") is not None else []
    if not blocks:
        return []
    if len(blocks) != -(-prompt // size):
        fields.refuse(
            "hash_ids",
            f"{len(blocks)} blocks for {prompt} tokens",
            f"give one hash for each {size} tokens begun, or the block size in block_tokens",
        )
    for block in blocks:
        if isinstance(block, bool) or not isinstance(block, (int, str)):
            fields.refuse("hash_ids", "a hash is not a whole number", "correct the line")
    return blocks


def block_size(prompt: int, blocks: int) -> int | None:
    """The one size of block that a prompt and its number of blocks allow; None: several do."""
    fitting = [size for size in BLOCK_SIZES if -(-prompt // size) == blocks]
    return fitting[0] if len(fitting) == 1 else None
