"""Events of a stream that differ from one already read in a single text.

An engine's chunks of an answer are the same bytes but for the words they bring. Once one has been
read as JSON, the next are known by what stands before and after their text, which is a fraction of
the cost of decoding each.
"""

from __future__ import annotations

from typing import Any

import orjson

_NONE = b"\0"
"""No event begins so."""
_WASTED = 8
"""Learned this often more than it helped, an engine varies its chunks too much. Our choice."""


class PlainEvents:
    """What stands around the text in the events of one stream."""

    __slots__ = ("_after", "_before", "_head", "_learned", "_tail", "count")

    def __init__(self) -> None:
        self._head, self._tail = _NONE, b""
        self._before = self._after = 0
        self._learned = 0
        self.count = 0
        """Events recognized so far."""

    def learn(self, event: bytes, chunk: dict[str, Any], holder: dict[str, Any], key: str) -> None:
        """Take an event that was read as a pattern for the next.

        Args:
            event: as received.
            chunk: what it decodes to.
            holder: the object in `chunk` that has the text, under `key`.
        """
        if self._learned >= self.count + _WASTED:
            self._head = _NONE
            return
        if not event.startswith(b"data: ") or not event.endswith(b"\n\n"):
            return
        name = b'"%b":' % key.encode()
        start = event.find(name) + len(name)
        start = event.find(b'"', start) + 1
        end = event.find(b'"', start)
        if b"\\" in event[start:end] or event.count(name) != 1:
            return
        head, tail = event[:start], event[end:]
        if _only_differs_there(head, tail, chunk, holder, key):
            self._head, self._tail = head, tail
            self._before, self._after = len(head), -len(tail)
            self._learned += 1

    def text_of(self, part: bytes) -> str | None:
        """The text of the one event that `part` is; None if it is not like the pattern."""
        if not (part.startswith(self._head) and part.endswith(self._tail)):
            return None
        try:
            text = part[self._before : self._after].decode()
        except UnicodeDecodeError:
            return None
        # JSON escapes quotes, backslashes and control characters; what else is unusual is read.
        if not text or '"' in text or "\\" in text or not text.isprintable():
            return None
        self.count += 1
        return text


def _only_differs_there(
    head: bytes, tail: bytes, chunk: dict[str, Any], holder: dict[str, Any], key: str
) -> bool:
    """Whether another text put between `head` and `tail` changes the text of `holder`, no more."""
    try:
        other = orjson.loads((head + b"?" + tail).removeprefix(b"data: "))
    except orjson.JSONDecodeError:
        return False
    text, holder[key] = holder[key], "?"
    same = bool(other == chunk)
    holder[key] = text
    return same
