"""The answer to a replayed turn: stamped as it comes, read when it is complete.

While tokens stream nothing is parsed, so that reading one stream does not delay the time stamps of
others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import orjson

from harness.live.clock import Clock
from harness.live.dialect import openai_usage
from schedulers.types import Usage

_TEXT = re.compile(rb'"(?:content|reasoning|reasoning_content|text)": ?"((?:[^"\\]|\\.)+)"')
_TOOL = b'"tool_calls"'


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended. Times in nanoseconds of the client's clock."""

    ok: bool
    status: int
    """HTTP status; 0: no answer."""
    error: str | None
    retry_after_s: float | None
    replica: str | None
    prefill_replica: str | None
    prefilled_ns: int | None
    """From the arrival at the gateway to the end of the prefill leg."""
    pause_ns: int
    attempts: int
    first_token: int | None
    longest_gap: int | None
    usage: Usage | None
    text: str
    tokens: int
    """Events with text."""


class StreamedAnswer:
    """The receiver of one streamed chat request."""

    __slots__ = ("_clock", "_done", "_headers", "_parts", "_status", "_times")

    def __init__(self, clock: Clock, done: Callable[[Outcome], None]) -> None:
        self._clock, self._done = clock, done
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._parts: list[bytes] = []
        self._times: list[int] = []

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self._status, self._headers = status, headers

    def data(self, part: bytes) -> None:
        self._times.append(self._clock.now)
        self._parts.append(part)

    def end(self) -> None:
        self._done(self._outcome(None))

    def lost(self, reason: str, *, unreachable: bool) -> None:
        self._done(self._outcome(reason))

    def _outcome(self, broken: str | None) -> Outcome:
        body = b"".join(self._parts)
        matches = list(_TEXT.finditer(body)) if self._status == 200 else []
        starts = [match.start() for match in matches]
        if not starts and (tool := body.find(_TOOL)) >= 0:
            starts = [tool]  # a tool call alone
        first, longest = self._token_times(starts)
        usage, error = self._ending(body)
        error = broken or error
        headers = self._headers
        prefill = headers.get("x-agentsched-prefill")
        if usage is not None and prefill is not None:
            # The decoder knows only of its own cache.
            found = _number(headers.get("x-agentsched-prefill-cached"))
            usage = replace(usage, cached=None if found is None else int(found))
        return Outcome(
            ok=self._status == 200 and error is None,
            status=self._status,
            error=error,
            retry_after_s=_number(headers.get("retry-after")),
            replica=headers.get("x-agentsched-replica"),
            prefill_replica=prefill,
            prefilled_ns=_nanoseconds(headers.get("x-agentsched-prefilled-ms")),
            pause_ns=_nanoseconds(headers.get("x-agentsched-pause-ms")) or 0,
            attempts=int(_number(headers.get("x-agentsched-attempts")) or 1),
            first_token=first,
            longest_gap=longest,
            usage=usage,
            text=_unescaped(b"".join([match[1] for match in matches])),
            tokens=len(matches),
        )

    def _token_times(self, starts: list[int]) -> tuple[int | None, int | None]:
        """When the first token came, and the longest time until another did.

        Args:
            starts: where tokens start in the whole answer.
        """
        first = last = longest = None
        seen = at = 0
        for part, time in zip(self._parts, self._times, strict=True):
            at += len(part)
            before = seen
            while seen < len(starts) and starts[seen] < at:
                seen += 1
            if seen == before:
                continue
            if last is None:
                first = time
            elif longest is None or time - last > longest:
                longest = time - last
            last = time
            if seen - before > 1:
                longest = longest or 0
        return first, longest

    def _ending(self, body: bytes) -> tuple[Usage | None, str | None]:
        """Usage, and what went wrong, from the last events."""
        if self._status != 200:
            return None, _message(body) or f"HTTP status {self._status}"
        usage, error, done = None, None, False
        for event in body[-65536:].split(b"\n\n")[-6:]:
            data = event.strip().removeprefix(b"data: ")
            if data == b"[DONE]":
                done = True
            elif b'"usage"' in data or b'"error"' in data:
                try:
                    found = orjson.loads(data)
                except orjson.JSONDecodeError:
                    continue
                usage = openai_usage(found.get("usage")) or usage
                error = _message(data) if "error" in found else error
        return usage, error or (None if done else "the stream ended early")


def _message(body: bytes) -> str | None:
    try:
        error = orjson.loads(body).get("error")
    except (orjson.JSONDecodeError, AttributeError):
        return None
    return str(error.get("message")) if isinstance(error, dict) else str(error) if error else None


def _unescaped(text: bytes) -> str:
    try:
        found: str = orjson.loads(b'"' + text + b'"')
    except orjson.JSONDecodeError:
        return text.decode("utf-8", "replace")
    return found


def _nanoseconds(text: str | None) -> int | None:
    """Of a header in milliseconds."""
    found = _number(text)
    return None if found is None else round(found * 1e6)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
