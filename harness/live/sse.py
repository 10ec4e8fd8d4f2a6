"""Server-sent events, cut out of a byte stream without copying more than needed.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from agentsched import AgentschedError

T = TypeVar("T")
MAX_EVENT_BYTES = 16 << 20
DONE = b"[DONE]"


class StreamError(AgentschedError):
    """An engine sent something that is not the stream it promised."""


def of_form(read: Callable[[], T]) -> T:
    """What `read` makes of something that an engine sent.

    Raises:
        StreamError: it has not the form that the engine's API promises.
    """
    try:
        return read()
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise StreamError(
            "the engine's answer has not the form of its API", "check what serves at the backend"
        ) from error


class EventSplitter:
    """Cuts a stream into whole events, each with the blank line that ends it."""

    __slots__ = ("rest",)

    def __init__(self) -> None:
        self.rest = b""
        """The unfinished event at the end."""

    def feed(self, part: bytes) -> list[bytes]:
        """The events that `part` completes, as the bytes received.

        Raises:
            StreamError: an event is longer than MAX_EVENT_BYTES.
        """
        text = self.rest + part if self.rest else part
        if b"\r" in text:
            return self._feed_with_carriage_returns(text)
        pieces = text.split(b"\n\n")
        self._keep(pieces.pop())
        return [piece + b"\n\n" for piece in pieces]

    def _keep(self, rest: bytes) -> None:
        if len(rest) > MAX_EVENT_BYTES:
            raise StreamError(
                f"the engine sent an event of more than {MAX_EVENT_BYTES >> 20} MiB",
                "check that the backend serves an OpenAI API",
            )
        self.rest = rest

    def _feed_with_carriage_returns(self, text: bytes) -> list[bytes]:
        """Lines may end in CR LF. A lone CR is not accepted as a line end: no engine sends it."""
        events: list[bytes] = []
        start = at = 0
        while (end := text.find(b"\n", at)) >= 0:
            line = text[at : end + 1]
            at = end + 1
            if line in (b"\n", b"\r\n"):
                events.append(text[start:at])
                start = at
        self._keep(text[start:])
        return events


def data_of(event: bytes) -> bytes:
    """The data of one event; empty for comments and events without data."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2:
        return event[6:-2].removesuffix(b"\r")
    lines: list[bytes] = []
    for line in event.splitlines():
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines)


def event_bytes(data: bytes, name: str | None = None) -> bytes:
    """One event with the data (which must be a single line)."""
    head = f"event: {name}\n".encode() if name is not None else b""
    return head + b"data: " + data + b"\n\n"


def chunk_bytes(parts: Iterable[bytes]) -> bytes:
    """One chunk of HTTP's chunked coding."""
    body = b"".join(parts)
    return b"%x\r\n%b\r\n" % (len(body), body)
