"""Turns in two legs: one replica computes the prompt, another one answers.

vLLM with NIXL: one after the other. The prefiller is asked for one token and tells in
`kv_transfer_params` where the KV is; that goes to the decoder with the same request
(vllm/distributed/kv_transfer/kv_connector/v1/nixl, docs/features/nixl_connector_usage.md).
SGLang: both at once. `bootstrap_host`, `bootstrap_port` and `bootstrap_room` join them, and the
decoder waits for the KV (docs/advanced_features/pd_disaggregation.md).

Only the gateway sets these fields; what callers put there is dropped (`dialect.REFUSED_FIELDS`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from harness.live.dialect import encode, openai_usage
from harness.live.wire import Call

ROOM_BITS = 63
"""SGLang keeps rooms in signed 64-bit numbers."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Where an SGLang prefill replica tells decoders of its KV."""

    host: str
    port: int

    def fields(self, room: int) -> dict[str, Any]:
        """What both legs of a request carry."""
        return {
            "bootstrap_host": self.host,
            "bootstrap_port": self.port,
            "bootstrap_room": room,
        }


REMOTE_DECODE: Mapping[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""Asks a vLLM replica to keep the prompt's KV for another one."""

_ENDS_EARLY = ("stop", "stop_token_ids", "min_tokens", "n", "best_of")


def prefill_body(body: bytes, *, one_token: bool) -> bytes:
    """The request of the prefill leg, from the body of the decode leg: in one piece.

    Args:
        one_token: vLLM's way. What could end the answer before its token, or keep it from being
            the only one, is left out: the decoder gets the request as it is.
    """
    fields: dict[str, Any] = orjson.loads(body)
    fields["stream"] = False
    fields.pop("stream_options", None)
    if one_token:
        fields |= {"max_tokens": 1, "ignore_eos": True}
        if "max_completion_tokens" in fields:
            fields["max_completion_tokens"] = 1
        for name in _ENDS_EARLY:
            fields.pop(name, None)
        if fields.get("tool_choice") not in (None, "auto", "none"):
            fields["tool_choice"] = "none"  # one token of a forced call could not be parsed
        if "kv_transfer_params" not in fields:
            fields["kv_transfer_params"] = dict(REMOTE_DECODE)
    return encode(fields)


class PrefillLeg:
    """The receiver of one prefill leg.

    Args:
        ended: called once, when the leg has been answered or lost.
    """

    def __init__(self, replica: str, ended: Callable[[PrefillLeg], None]) -> None:
        self.replica = replica
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.lost_reason: str | None = None
        self.unreachable = False
        self.call: Call | None = None
        self.over = False
        self._parts: list[bytes] = []
        self._ended = ended

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers

    def data(self, part: bytes) -> None:
        self._parts.append(part)

    def end(self) -> None:
        self.over = True
        self._ended(self)

    def lost(self, reason: str, *, unreachable: bool) -> None:
        self.over = True
        self.lost_reason, self.unreachable = reason, unreachable
        self._ended(self)

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)

    def cancel(self) -> None:
        if self.call is not None and not self.over:
            self.call.cancel()

    def answer(self) -> Prefilled:
        """What a leg that went well tells."""
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            return Prefilled(None, None)
        params = found.get("kv_transfer_params")
        usage = openai_usage(found.get("usage"))
        return Prefilled(
            params if isinstance(params, dict) else None,
            usage.cached if usage is not None else None,
        )


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The answer of a prefill leg."""

    params: dict[str, Any] | None
    """For the decoder; None: it has to compute the prompt itself."""
    cached: int | None
    """Prompt tokens that the prefiller found in its cache."""
