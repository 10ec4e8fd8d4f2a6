"""The admin port: hints, releases, and what the gateway is doing. Kept apart from the model port.

GET /sessions, /replicas, /decisions?n=N, /state, /metrics (Prometheus);
POST /sessions/ID/hint {"eta_s": S} or {"progress": 0..1}, /sessions/ID/release,
/programs/release {"program_id": ID} (ThunderAgent's).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, unquote

from harness.live.dialect import JSON_TYPE, RequestError, decode_body, encode
from harness.live.exporter import prometheus_page
from harness.live.gateway import Gateway
from harness.live.gauges import Gauges
from harness.live.wire import Exchange, Headers, Request
from results.records import DecisionRecord


class Admin:
    """Handles the requests of the admin port.

    Args:
        decisions: the newest records of the decision log.
    """

    def __init__(
        self, gateway: Gateway, scheduler: str, decisions: Sequence[DecisionRecord]
    ) -> None:
        self._gateway, self._driver = gateway, gateway.driver
        self._scheduler = scheduler
        self._gauges: dict[str, Gauges] = {}
        self._decisions = decisions

    def saw_gauges(self, replica: str, gauges: Gauges) -> None:
        self._gauges[replica] = gauges

    def refusal(self, path: str, status: int, message: str) -> tuple[Headers, bytes]:
        return [JSON_TYPE], encode({"error": message})

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Answer one request."""
        path, _, query = request.target.partition("?")
        parts = [unquote(part) for part in path.strip("/").split("/")]
        try:
            if request.method == "GET":
                self._get(path, query, exchange)
            elif request.method == "POST":
                self._post(parts, decode_body(request.body or b"{}"), exchange)
            else:
                raise RequestError(405, f"{request.method} is not for {path}")
        except RequestError as error:
            exchange.reply(error.status, *self.refusal(path, error.status, error.message))

    def _get(self, path: str, query: str, exchange: Exchange) -> None:
        if path == "/metrics":
            page = prometheus_page(self._gateway, self._scheduler, self._gauges)
            exchange.reply(200, [("content-type", "text/plain; version=0.0.4")], page)
            return
        pages = {
            "/sessions": self._sessions,
            "/replicas": self._replicas,
            "/state": self._state,
            "/health": dict[str, Any],
        }
        if path == "/decisions":
            answer: Any = self._last_decisions(query)
        elif path in pages:
            answer = pages[path]()
        else:
            raise RequestError(404, f"there is no {path} here")
        exchange.reply(200, [JSON_TYPE], encode(answer))

    def _post(self, parts: list[str], body: dict[str, Any], exchange: Exchange) -> None:
        if parts[:1] == ["sessions"] and len(parts) == 3 and parts[2] == "hint":
            known = self._driver.hint(parts[1], self._eta(parts[1], body))
            exchange.reply(200 if known else 404, [JSON_TYPE], encode({"known": known}))
        elif parts[:1] == ["sessions"] and len(parts) == 3 and parts[2] == "release":
            released = self._driver.release(parts[1])
            exchange.reply(200, [JSON_TYPE], encode({"released": released}))
        elif parts == ["programs", "release"]:
            released = self._driver.release(str(body.get("program_id")))
            exchange.reply(200, [JSON_TYPE], encode({"released": released}))
        else:
            raise RequestError(404, f"there is no /{'/'.join(parts)} here")

    def _eta(self, session: str, body: dict[str, Any]) -> float:
        """Seconds until the session's tools end, stated or worked out from their progress."""
        eta, progress = _number(body.get("eta_s")), _number(body.get("progress"))
        if eta is not None and 0 <= eta < 1e9:
            return eta
        if progress is None or not 0 < progress <= 1:
            raise RequestError(400, "give `eta_s` (seconds) or `progress` (above 0, up to 1)")
        known = self._driver.plane.ledger.sessions.get(session)
        idle = known.idle_since if known is not None else None
        passed = (self._driver.clock.now - idle) / 1e9 if idle is not None else 0.0
        return passed * (1 - progress) / progress

    # What is shown.

    def _sessions(self) -> list[dict[str, Any]]:
        now = self._driver.clock.now
        return [
            {
                "id": session.id,
                "parent": session.parent,
                "phase": session.phase,
                "lifecycle": session.lifecycle,
                "home": session.home,
                "tokens": session.tokens,
                "turns_finished": session.turns_finished,
                "in_flight": session.in_flight,
                "waiting": len(session.waiting),
                "idle_s": None if session.idle_since is None else (now - session.idle_since) / 1e9,
                "tools": [tool.name for tool in session.tools],
            }
            for session in self._driver.plane.ledger.sessions.values()
        ]

    def _replicas(self) -> list[dict[str, Any]]:
        now = self._driver.clock.now
        shown: list[dict[str, Any]] = []
        for replica in self._driver.plane.ledger.replicas:
            sample = replica.sample
            age = None if replica.sampled_at is None else (now - replica.sampled_at) / 1e9
            hits, queries = (sample.prefix_hits, sample.prefix_queries) if sample else (None, None)
            shown.append(
                {
                    "id": replica.id,
                    "role": replica.role,
                    "healthy": replica.healthy,
                    "capacity_tokens": replica.capacity_tokens,
                    "in_flight": replica.in_flight,
                    "queued_prefill_tokens": replica.queued_prefill_tokens,
                    "sessions": len(list(replica.sessions)),
                    "running": sample.running if sample else None,
                    "waiting": sample.waiting if sample else None,
                    "kv_usage": sample.kv_usage if sample else None,
                    "prefix_hits": hits,
                    "prefix_queries": queries,
                    "generation_tokens": sample.generation_tokens if sample else None,
                    "sample_age_s": age,
                }
            )
        return shown

    def _state(self) -> dict[str, Any]:
        sessions = self._driver.plane.ledger.sessions.values()
        return {
            "scheduler": self._scheduler,
            "now_s": self._driver.clock.now / 1e9,
            **self._driver.facts(),
            "paused": sum(1 for s in sessions if s.lifecycle == "paused"),
            "counts": self._driver.counts,
            "replicas": self._replicas(),
        }

    def _last_decisions(self, query: str) -> list[DecisionRecord]:
        asked = parse_qs(query).get("n", ["100"])[0]
        if not asked.isdecimal():
            raise RequestError(400, f"n={asked}: give a whole number")
        count = min(int(asked), len(self._decisions))
        return [self._decisions[-i] for i in range(count, 0, -1)]


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else None
