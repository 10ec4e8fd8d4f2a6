"""Which prompt prefixes were sent to which replica: the gateway's own knowledge of shared text.

A trie over prompt runs. Node (parent, offset, segment) is the text of `segment` that follows
the first `offset` tokens of its parent; per replica it holds how far into the segment was ever
sent. The engine may have evicted any of it, so an answer is an upper bound.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from schedulers.types import PromptRef

_Key = tuple[int, int, str]
_ROOT = 0
IDLE_LIMIT = 20_000
"""Our choice: some 13 MB."""


@dataclass(slots=True)
class _Node:
    number: int
    reach: dict[str, int] = field(default_factory=dict)
    users: int = 0


class PrefixIndex:
    """Longest known prefix of a prompt on a replica, in tokens.

    Text of open sessions is always kept. Text that only closed sessions used is kept while fewer
    than `idle_limit` such nodes exist, longest idle dropped first.
    """

    def __init__(self, idle_limit: int = IDLE_LIMIT) -> None:
        self._nodes: dict[_Key, _Node] = {}
        self._idle: OrderedDict[_Key, None] = OrderedDict()
        self._used_by: dict[str, set[_Key]] = {}
        self._idle_limit = idle_limit
        self._last_number = _ROOT

    def insert(self, session: str, prompt: PromptRef, replica: str) -> None:
        """The prompt was sent to the replica."""
        used = self._used_by.setdefault(session, set())
        parent = offset = 0
        for segment, tokens, _ in prompt.runs:
            key = (parent, offset, segment)
            node = self._nodes.get(key)
            if node is None:
                self._last_number += 1
                node = self._nodes[key] = _Node(self._last_number)
            if key not in used:
                used.add(key)
                node.users += 1
                self._idle.pop(key, None)
            if node.reach.get(replica, 0) < tokens:
                node.reach[replica] = tokens
            parent, offset = node.number, tokens

    def match(self, prompt: PromptRef, replica: str) -> int:
        """Tokens of the longest prefix of the prompt that was sent to the replica."""
        matched = parent = offset = 0
        for segment, tokens, _ in prompt.runs:
            node = self._nodes.get((parent, offset, segment))
            if node is None:
                break
            reach = node.reach.get(replica, 0)
            if reach < tokens:
                return matched + reach
            matched += tokens
            parent, offset = node.number, tokens
        return matched

    def close(self, session: str) -> None:
        """The session ended; text nobody else uses becomes droppable."""
        for key in sorted(self._used_by.pop(session, ())):
            node = self._nodes[key]
            node.users -= 1
            if node.users == 0:
                self._idle[key] = None
        while len(self._idle) > self._idle_limit:
            key, _ = self._idle.popitem(last=False)
            del self._nodes[key]

    def forget(self, replica: str) -> None:
        """The replica lost its KV cache."""
        for node in self._nodes.values():
            node.reach.pop(replica, None)
