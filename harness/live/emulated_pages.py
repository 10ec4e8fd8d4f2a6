"""Pages of an emulated replica that need no engine step: metrics, models, version, load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from harness.live.dialect import JSON_TYPE, encode
from harness.live.emulated_answers import engine_metrics
from harness.live.texts import Piece
from harness.live.wire import Exchange, Request
from harness.live.words import BYTES_PER_TOKEN

if TYPE_CHECKING:
    from harness.live.emulator import EmulatedReplica
    from harness.live.kv_publishing import KvPublisher


class Pages:
    """What GET requests are answered.

    Args:
        apis: paths that the replica generates at.
    """

    def __init__(self, replica: EmulatedReplica, kv_blocks: int, apis: Sequence[str]) -> None:
        self._replica, self._kv_blocks, self._apis = replica, kv_blocks, apis
        self.publisher: KvPublisher | None = None
        self._pages: dict[str, Callable[[], bytes]] = {
            "/health": lambda: b"",
            "/ping": lambda: b"",
            "/metrics": self._metrics,
            "/version": lambda: encode({"version": "emulated"}),
            "/v1/models": self._models,
            "/load": lambda: encode({"server_load": replica.in_flight}),
            "/openapi.json": self._description,
            "/kv_event_sources": self._kv_events,
        }

    def answer(self, request: Request, exchange: Exchange) -> None:
        page = self._pages.get(request.path) if request.method == "GET" else None
        if page is None:
            exchange.reply(404, [JSON_TYPE], encode({"detail": "Not Found"}))
            return
        kind = "text/plain; version=0.0.4" if request.path == "/metrics" else "application/json"
        exchange.reply(200, [("content-type", kind)], page())

    def _metrics(self) -> bytes:
        replica = self._replica
        replica.advance()
        sample = replica.engine.sample()
        block = replica.engine.params.block_size
        exchange = replica.exchange
        kv = exchange.received.get(replica.name) if exchange is not None else None
        return engine_metrics(sample, replica.settings.model, block, self._kv_blocks, kv)

    def _models(self) -> bytes:
        settings = self._replica.settings
        model = {
            "id": settings.model,
            "object": "model",
            "created": 0,
            "owned_by": "agentsched",
            "max_model_len": settings.max_model_len,
        }
        return encode({"object": "list", "data": [model]})

    def _kv_events(self) -> bytes:
        """Publishers by data-parallel rank, as vLLM shows them."""
        publisher = self.publisher
        if publisher is None:
            return encode({})
        source = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": publisher.address,
            "replay_endpoint": publisher.replay_address,
            "topic": "",
        }
        return encode({"0": source})

    def _description(self) -> bytes:
        posted = [*self._apis, "/tokenize", "/reset_prefix_cache"]
        paths: dict[str, dict[str, Any]] = {
            path: {"post": {"responses": {"200": {}}}} for path in posted
        }
        paths |= {path: {"get": {"responses": {"200": {}}}} for path in self._pages}
        info = {"title": "agentsched emulator", "version": "emulated"}
        return encode({"openapi": "3.1.0", "info": info, "paths": paths})


def tokenized(pieces: Sequence[Piece], count: int, limit: int) -> dict[str, Any]:
    """The answer of `/tokenize` as vLLM shows it; the numbers stand for four bytes each."""
    text = "".join(piece.text for piece in pieces).encode("utf-8", "replace")
    cut = [text[at : at + BYTES_PER_TOKEN] for at in range(0, len(text), BYTES_PER_TOKEN)]
    tokens = [int.from_bytes(part, "big") for part in cut[:count]]
    return {
        "count": count,
        "max_model_len": limit,
        "tokens": tokens + [0] * (count - len(tokens)),
        "token_strs": None,
    }
