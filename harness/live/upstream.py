"""What of a request goes on to an engine beside its body, and what an unstreamed answer starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.live.dialect import EVENT_STREAM, encode
from harness.live.wire import Call
from schedulers.types import ToolSignal

if TYPE_CHECKING:
    from harness.live.relay import Relay

_DROPPED_HEADERS = frozenset(
    {
        "accept-encoding",  # what passes must be readable
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        # Headers by which routers and engines take a caller's word for where to go.
        "x-data-parallel-rank",
        "x-smg-target-worker",
        "x-prefiller-host-port",
        "x-data-parallel-host-port",
    }
)


def engine_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The caller's headers, without those that are between two ends of a connection, or that could
    reach past the gateway."""
    kept = {name: value for name, value in headers.items() if name not in _DROPPED_HEADERS}
    kept["accept"] = f"{EVENT_STREAM}, application/json"
    kept.setdefault("content-type", "application/json")
    return kept


def tools_of(body: Any) -> tuple[ToolSignal, ...]:
    """Tools that an unstreamed chat completion starts."""
    choices = body.get("choices") if isinstance(body, dict) else None
    message = choices[0].get("message") if isinstance(choices, list) and choices else None
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    found: list[ToolSignal] = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            arguments = function.get("arguments")
            text = arguments if isinstance(arguments, str) else encode(arguments).decode()
            found.append(ToolSignal(function["name"], text))
    return tuple(found)


class Attempt:
    """The receiver of one dispatch; deaf once the relay has moved on."""

    __slots__ = ("_relay", "_replica", "call", "data", "over")

    def __init__(self, relay: Relay, replica: str) -> None:
        self._relay, self._replica = relay, replica
        self.call: Call | None = None
        self.over = False
        self.data = relay.engine_data  # called for every chunk: no frame in between

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self._relay.engine_head(status, headers)

    def end(self) -> None:
        self.over = True
        self._relay.engine_end()

    def lost(self, reason: str, *, unreachable: bool) -> None:
        self.over = True
        self._relay.decoder_lost(self._replica, reason, unreachable=unreachable)
