"""The gateway's own metrics, for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from harness.live.gateway import Gateway
from harness.live.gauges import Gauges

Row = tuple[str, str, dict[str, str], float]


def prometheus_page(gateway: Gateway, scheduler: str, gauges: Mapping[str, Gauges]) -> bytes:
    """The metrics page: text format 0.0.4."""
    lines: list[str] = []
    named: set[str] = set()
    for name, kind, labels, value in _rows(gateway, gauges):
        full = f"agentsched_{name}"
        if full not in named:
            named.add(full)
            lines.append(f"# TYPE {full} {kind}")
        labels = {"scheduler": scheduler, **labels}
        inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{full}{{{inner}}} {value:g}")
    return ("\n".join(lines) + "\n").encode()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # a virtual clock, no event loop
        return 0


def _rows(gateway: Gateway, gauges: Mapping[str, Gauges]) -> Iterator[Row]:
    driver = gateway.driver
    ledger = driver.plane.ledger
    for name, value in driver.facts().items():
        yield name, "gauge", {}, value
    paused = sum(1 for s in ledger.sessions.values() if s.lifecycle == "paused")
    yield "sessions_paused", "gauge", {}, paused
    yield "bytes_per_token", "gauge", {}, gateway.ratio.value
    for name, value in sorted(driver.counts.items()):
        yield f"{name}_total", "counter", {}, value
    yield "forced_admissions_total", "counter", {}, driver.plane.forced_admissions
    yield "tasks", "gauge", {}, _tasks()
    legs = driver.legs
    yield "prefill_legs_total", "counter", {}, legs.prefill_legs
    yield "prefill_leg_seconds_total", "counter", {}, legs.prefill_ns / 1e9
    yield "kv_handovers_total", "counter", {}, legs.handovers
    yield "kv_handover_seconds_total", "counter", {}, legs.handover_ns / 1e9
    for replica in ledger.replicas:
        label = {"replica": replica.id}
        yield "replica_up", "gauge", label, int(replica.healthy)
    for replica in ledger.replicas:
        yield "replica_in_flight", "gauge", {"replica": replica.id}, replica.in_flight
    for replica in ledger.replicas:
        queued = replica.queued_prefill_tokens
        yield "replica_queued_prefill_tokens", "gauge", {"replica": replica.id}, queued
    for replica in ledger.replicas:
        if replica.capacity_tokens is not None:
            capacity = replica.capacity_tokens
            yield "replica_capacity_tokens", "gauge", {"replica": replica.id}, capacity
    for field in ("running", "waiting", "kv_usage"):
        for name, page in gauges.items():
            seen = getattr(page.sample, field)
            if seen is not None:
                yield f"engine_{field}", "gauge", {"replica": name}, seen
    for name, page in gauges.items():
        if page.kv is not None:
            label = {"replica": name}
            yield "engine_kv_transfers_total", "counter", label, page.kv.count
            yield "engine_kv_transfer_seconds_total", "counter", label, page.kv.seconds
            yield "engine_kv_transfer_bytes_total", "counter", label, page.kv.bytes
