"""Prompts as runs of known text: which stretches of it were seen before, and how long they are.

A prompt is a list of pieces (a message, a part of one, the tool schemas). Pieces form a tree; a
path of the tree is named by few *segments*: text that follows the end of a segment extends it,
text that branches off anywhere else opens a new one. So an agent that only appends has one
growing segment, and agents that share their first messages share a first run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schedulers.types import PromptRun

SHARED_BYTES = 16
"""A piece that begins like another, by at least this much, shares what they have in common."""
TEXT_LIMIT = 256 << 20
"""Bytes of text kept. Our choice."""


_Key = tuple[int, str, str]
"""Of a piece: the number of the node before it, its role and its text."""


class Piece(NamedTuple):
    """One stretch of a prompt. `role` keeps equal texts of different speakers apart."""

    role: str
    text: str


@dataclass(slots=True)
class Node:
    """The end of a piece: where it lies in its segment (tokens and bytes from its start)."""

    number: int
    parent: Node | None
    segment: str
    tokens: int
    bytes: int
    role: str
    text: str
    extended: bool = False
    """Something follows it in its segment already."""
    exact: bool = False
    """Its token count comes from an engine."""


class TokenRatio:
    """Bytes of text per token, learnt from what engines report.

    The first sample replaces the start value, then 0.2 new + 0.8 old, as ThunderAgent does.

    Args:
        start: until the first sample. Our choice: 4, a common rule of thumb.
    """

    def __init__(self, start: float = 4.0) -> None:
        self.value = start
        self._sampled = False

    def learn(self, text_bytes: int, tokens: int) -> None:
        if text_bytes <= 0 or tokens <= 0:
            return
        sample = text_bytes / tokens
        self.value = 0.2 * sample + 0.8 * self.value if self._sampled else sample
        self._sampled = True

    def tokens(self, text_bytes: int) -> int:
        return max(1, round(text_bytes / self.value)) if text_bytes else 0


class TextTree:
    """All pieces seen, least recently used ones dropped.

    Args:
        ratio: gives the tokens of a piece, once, when it is first seen: equal text then always
            counts equally.
        text_limit: bytes of text kept to find pieces that begin alike.
        node_limit: pieces kept.
        dropped: is given the number of each piece that is dropped.
    """

    def __init__(
        self,
        ratio: TokenRatio,
        *,
        text_limit: int = TEXT_LIMIT,
        node_limit: int = 500_000,
        dropped: Callable[[int], None] | None = None,
    ) -> None:
        self._ratio, self._dropped = ratio, dropped
        self._text_limit, self._node_limit = text_limit, node_limit
        self._nodes: OrderedDict[_Key, Node] = OrderedDict()
        self._similar: dict[tuple[int, str], list[_Key]] = {}
        self._count = 0
        self._text_bytes = 0
        self._root = Node(0, None, "", 0, 0, "", "", extended=True)

    def walk(self, pieces: Sequence[Piece]) -> list[Node]:
        """The nodes of a prompt, one a piece (more where a piece begins like another)."""
        node, path, keys = self._root, list[Node](), list[_Key]()
        for role, text in pieces:
            key = (node.number, role, text)
            known = self._nodes.get(key)
            grown = ((key, known),) if known is not None else self._grow(node, key)
            for key, node in grown:
                path.append(node)
                keys.append(key)
        for key in reversed(keys):  # a node outlives what hangs on it
            self._nodes.move_to_end(key)
        self._drop_old()
        return path

    def _grow(self, parent: Node, key: _Key) -> list[tuple[_Key, Node]]:
        """Nodes of a piece that is not known after `parent`, each with its key."""
        steps: list[tuple[_Key, Node]] = []
        _, role, text = key
        while True:
            start = _start_of(key) if len(text) >= SHARED_BYTES else None
            similar = self._similar.get(start) if start is not None else None
            twin, common = self._twin(similar, text) if similar is not None else (None, 0)
            if twin is None:
                if start is not None:
                    self._similar.setdefault(start, []).append(key)
                return [*steps, (key, self._add(key, parent))]
            head_key = (parent.number, role, text[:common])
            head = self._nodes.get(head_key)
            if head is None:
                head = self._cut(head_key, parent, twin)
            steps.append((head_key, head))
            if common == len(text):
                return steps
            parent, text = head, text[common:]
            key = (parent.number, role, text)
            node = self._nodes.get(key)
            if node is not None:
                return [*steps, (key, node)]

    def _twin(self, similar: Sequence[_Key], text: str) -> tuple[Node | None, int]:
        """The one of the similar pieces that has most in common with `text` from the start."""
        best, most = None, SHARED_BYTES - 1
        for key in similar:
            node = self._nodes.get(key)
            if node is not None and (common := _common(node.text, text)) > most:
                best, most = node, common
        return best, most

    def _add(self, key: _Key, parent: Node) -> Node:
        _, role, text = key
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        tokens = self._ratio.tokens(size)
        self._count += 1
        if parent.extended:
            node = Node(self._count, parent, f"t{self._count}", tokens, size, role, text)
        else:
            parent.extended = True
            node = Node(
                self._count,
                parent,
                parent.segment,
                parent.tokens + tokens,
                parent.bytes + size,
                role,
                text,
            )
        self._store(key, node)
        return node

    def _cut(self, key: _Key, parent: Node, twin: Node) -> Node:
        """A node inside `twin`: the part of it that the key's text is.

        It is not kept among the similar ones: whatever begins like it begins like its twin.
        """
        _, role, text = key
        start_tokens, start_bytes = (
            (parent.tokens, parent.bytes) if twin.segment == parent.segment else (0, 0)
        )
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        whole = max(1, twin.bytes - start_bytes)
        tokens = (twin.tokens - start_tokens) * size // whole
        self._count += 1
        node = Node(
            self._count,
            parent,
            twin.segment,
            start_tokens + tokens,
            start_bytes + size,
            role,
            text,
            extended=True,
        )
        self._store(key, node)
        return node

    def _store(self, key: _Key, node: Node) -> None:
        self._nodes[key] = node
        self._text_bytes += len(node.text)

    def _drop_old(self) -> None:
        while len(self._nodes) > self._node_limit or self._text_bytes > self._text_limit:
            key, node = self._nodes.popitem(last=False)
            self._text_bytes -= len(node.text)
            if self._dropped is not None:
                self._dropped(node.number)
            start = _start_of(key)
            similar = self._similar.get(start)
            if similar is not None and key in similar:
                similar.remove(key)
                if not similar:
                    del self._similar[start]


def _start_of(key: _Key) -> tuple[int, str]:
    number, role, text = key
    return number, role + text[:SHARED_BYTES]


def runs_of(path: Sequence[Node]) -> tuple[PromptRun, ...]:
    """The prompt at the end of a path as runs."""
    ends: list[Node] = []
    segment = None
    for node in path:
        if node.segment == segment:
            ends[-1] = node
        else:
            ends.append(node)
            segment = node.segment
    return tuple([PromptRun(node.segment, node.tokens, node.bytes) for node in ends])


def correct(path: Sequence[Node], prompt_tokens: int) -> None:
    """An engine has counted the prompt: let its last piece have what the others leave.

    Only where nothing follows yet, so that no known length changes under a prompt that uses it.
    """
    if not path or path[-1].extended or path[-1].exact:
        return
    last = path[-1]
    error = prompt_tokens - sum(run.tokens for run in runs_of(path))
    before = path[-2].tokens if len(path) > 1 and path[-2].segment == last.segment else 0
    if last.tokens + error > before:
        last.tokens += error
        last.exact = True


def _common(a: str, b: str) -> int:
    """Characters two texts have in common from the start."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
