"""The serving side of a simulated cluster: engines, KV transfers between them, a shared store.

A turn runs in one leg, or in two: the prefill leg computes the prompt on one replica, which keeps
its blocks until the decode replica has copied them; the decode leg computes the last prompt token
again and goes on. With a shared store, what it has of a prompt and the engine has not is loaded
instead of computed, and finished turns are written to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from harness.sim.clock import Clock, Priority
from harness.sim.content import ContentIndex, Line
from harness.sim.cpu_offload import CpuTier, offload_counters
from harness.sim.engine import Engine
from harness.sim.engine_types import EngineEvent, EngineRequest
from harness.sim.fleet import Fleet
from harness.sim.kv_store import KvStore, StoreSpec
from harness.sim.links import Fabric, LinkSpec


@dataclass(frozen=True, slots=True)
class Request:
    """What a dispatch asks for. `segments` are those of prompt and output together."""

    attempt: int
    segments: Sequence[tuple[str, int]]
    prompt_tokens: int
    output_tokens: int
    decode: str
    prefill: str | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """How a request ended well. `cached_tokens` of the prompt were not computed."""

    attempt: int
    replica: str
    cached_tokens: int
    longest_gap: int | None
    prefilled: int | None = None
    """When the prefill leg ended, of a request in two legs."""
    sent: int | None = None
    """When its KV last set out, from the prefill replica or the store; waiting for the link is in
    the time from here to `received`."""
    received: int | None = None


class Listener(Protocol):
    """Is told what clients of the service see, when they see it."""

    def leg_finished(self, attempt: int, replica: str) -> None: ...
    def first_token(self, attempt: int, replica: str) -> None: ...
    def finished(self, served: Served) -> None: ...
    def refused(self, attempt: int, replica: str, reason: str) -> None: ...
    def unreachable(self, attempt: int, replica: str) -> None: ...


class _Flight:
    """A request under way."""

    __slots__ = (
        "begun", "cached", "copied", "leg", "line", "loaded", "prefilled", "received", "request",
        "sent", "stored",
    )  # fmt: skip

    def __init__(self, request: Request, line: Line, stored: Line | None) -> None:
        self.request = request
        self.line = line
        self.stored = stored
        """Its text as the shared store names it."""
        self.leg = request.prefill or request.decode
        """The replica that works on it."""
        self.begun = False
        """Its client has been told of the first token."""
        self.cached = 0
        self.loaded = 0
        self.copied = request.prefill is None
        """Whether the prefill replica's blocks are free again."""
        self.prefilled: int | None = None
        self.sent: int | None = None
        self.received: int | None = None


class Service:
    """Args:
    engines: one per replica, by id.
    bytes_per_token: KV bytes of a token on each GPU of a replica, by replica id.
    link: of each GPU, for KV between replicas.
    store: the shared store, if there is one.
    tiers: host memory of each replica, if it is used.
    """

    def __init__(
        self,
        clock: Clock,
        engines: dict[str, Engine],
        contents: ContentIndex,
        listener: Listener,
        *,
        bytes_per_token: Mapping[str, float],
        link: LinkSpec,
        store: StoreSpec | None = None,
        tiers: Mapping[str, CpuTier] | None = None,
    ) -> None:
        self.fleet = Fleet(clock, engines, self._deliver)
        self.fabric = Fabric(link)
        self.store = KvStore(store) if store is not None else None
        self._store_links = Fabric(store.link) if store is not None else None
        self.tiers = tiers or {}
        self._clock = clock
        self._contents = contents
        self._listener = listener
        self._bytes = bytes_per_token
        self._flights: dict[int, _Flight] = {}
        self._down: set[str] = set()

    @property
    def busy(self) -> bool:
        return bool(self._flights)

    def submit(self, request: Request) -> None:
        """Start a request; the listener hears of it."""
        stored = None
        if self.store is not None:
            stored = self.store.intern(request.segments)
        flight = _Flight(request, self._contents.intern(request.segments), stored)
        self._flights[request.attempt] = flight
        if request.prefill is None:
            self._start(flight, request.decode, self._found(flight))
        else:
            self._start(flight, request.prefill, self._found(flight), prefill_leg=True)

    def cancel(self, attempt: int) -> str:
        """Stop a request under way; returns the replica that worked on it."""
        flight = self._flights.pop(attempt)
        self.fleet.abort(flight.leg, attempt)
        self._free_copy(flight)
        return flight.leg

    def lose(self, replica: str) -> list[int]:
        """The replica dies with its KV; returns the requests that end by it.

        One whose other leg was to follow on it does not: that is found out when its time has come.
        """
        self._down.add(replica)
        lost = self.fleet.reset(replica)
        if self.tiers:
            self.tiers[replica].lose()
        for attempt, flight in list(self._flights.items()):
            if flight.request.prefill == replica and not flight.copied and attempt not in lost:
                self.fleet.abort(flight.leg, attempt)
                lost.append(attempt)
        for attempt in lost:
            flight = self._flights.pop(attempt)
            if flight.request.prefill != replica:
                self._free_copy(flight)
        return lost

    def recover(self, replica: str) -> None:
        """The replica answers again, and is empty."""
        self._down.discard(replica)

    def streamed(self, attempt: int) -> int:
        """Output tokens of a request that its client has by now; 0 for an unknown one."""
        flight = self._flights.get(attempt)
        if flight is None or not flight.begun:
            return 0
        return self.fleet.streamed(flight.leg, attempt)

    def counters(self) -> dict[str, float]:
        """Totals of transfers and the store."""
        found: dict[str, float] = {
            "kv.transfers": self.fabric.transfers,
            "kv.transferred_gb": self.fabric.moved_bytes / 1e9,
            "kv.transfer_wait_s": self.fabric.waited_ns / 1e9,
        }
        if self.store is not None and self._store_links is not None:
            found["store.hit_tokens"] = self.store.hit_tokens
            found["store.lookups"] = self.store.lookups
            found["store.moved_gb"] = self._store_links.moved_bytes / 1e9
            found["store.link_wait_s"] = self._store_links.waited_ns / 1e9
        if self.tiers:
            found |= offload_counters(self.tiers.values())
        return found

    # ---- legs --------------------------------------------------------------------------------

    def _start(self, flight: _Flight, replica: str, remote: int, prefill_leg: bool = False) -> None:
        request = flight.request
        flight.leg = replica
        self.fleet.submit(
            replica,
            EngineRequest(
                id=request.attempt,
                line=flight.line,
                prompt_tokens=request.prompt_tokens,
                output_tokens=request.output_tokens,
                priority=request.priority,
                prefill_only=prefill_leg,
                keep_blocks=prefill_leg,
                remote_tokens=remote,
            ),
        )

    def _second_leg(self, flight: _Flight) -> None:
        request = flight.request
        if request.decode not in self._down:
            self._start(flight, request.decode, request.prompt_tokens)
            return
        del self._flights[request.attempt]
        self._free_copy(flight)
        self._listener.unreachable(request.attempt, request.decode)

    def _found(self, flight: _Flight) -> int:
        """Tokens of the prompt that the store has, or the memory beside the first replica."""
        if self.tiers:
            request = flight.request
            tier = self.tiers[request.prefill or request.decode]
            return tier.found(request.segments, request.prompt_tokens)
        if self.store is None or flight.stored is None:
            return 0
        return self.store.lookup(flight.stored, flight.request.prompt_tokens)

    def _deliver(self, replica: str, event: EngineEvent) -> None:
        flight = self._flights[event.id]
        if event.kind == "loading":
            self._load(flight, event)
        elif event.kind == "first_token":
            flight.begun = True
            self._free_copy(flight)
            self._listener.first_token(event.id, replica)
        elif event.kind == "rejected":
            del self._flights[event.id]
            self._free_copy(flight)
            self._listener.refused(event.id, replica, event.reason or "refused by the engine")
        elif replica != flight.request.decode:
            flight.cached = event.cached_tokens + flight.loaded
            flight.prefilled = self._clock.now
            self._offload(flight, replica, flight.request.prompt_tokens)
            self._listener.leg_finished(event.id, replica)
            if event.id in self._flights:
                self._second_leg(flight)
        else:
            self._finish(flight, event, replica)

    def _finish(self, flight: _Flight, event: EngineEvent, replica: str) -> None:
        request = flight.request
        del self._flights[event.id]
        if request.prefill is None:
            flight.cached = event.cached_tokens + flight.loaded
        self._publish(flight, replica)
        # The last token is sampled, never fed: its KV does not exist.
        self._offload(flight, replica, request.prompt_tokens + request.output_tokens - 1)
        self._listener.finished(
            Served(
                event.id,
                replica,
                flight.cached,
                event.longest_gap,
                flight.prefilled,
                flight.sent,
                flight.received,
            )
        )

    def _free_copy(self, flight: _Flight) -> None:
        """Let the prefill replica have its blocks back."""
        if not flight.copied:
            flight.copied = True
            prefill = flight.request.prefill
            assert prefill is not None
            self.fleet.release(prefill, flight.request.attempt)

    # ---- KV on the move ----------------------------------------------------------------------

    def _load(self, flight: _Flight, event: EngineEvent) -> None:
        now, target = self._clock.now, flight.leg
        flight.sent = now
        size = self._size(target, event.load_tokens)
        prefill = flight.request.prefill
        if prefill is not None and target == flight.request.decode:
            size = max(size, self._size(prefill, event.load_tokens))
            done = self.fabric.transfer(prefill, target, size, now)
        elif self.tiers:
            flight.loaded = event.load_tokens
            done = self.tiers[target].load(event.load_tokens, now)
        else:
            assert self.store is not None
            assert self._store_links is not None
            flight.loaded = event.load_tokens
            looked_up = now + round(self.store.spec.lookup_us * 1000)
            done = self._store_links.transfer(target, target, size, looked_up)
        after = partial(self._loaded, flight, target)
        self._clock.at(done, Priority.ENGINE, after)

    def _loaded(self, flight: _Flight, target: str) -> None:
        attempt = flight.request.attempt
        if self._flights.get(attempt) is not flight or flight.leg != target:
            return  # it was cancelled, or its replica died
        flight.received = self._clock.now
        self.fleet.loaded(target, attempt)
        if target == flight.request.decode:
            self._free_copy(flight)

    def _publish(self, flight: _Flight, replica: str) -> None:
        """Write what the turn has added to the store; it is visible when written."""
        if self.store is None or flight.stored is None or self._store_links is None:
            return
        store, request = self.store, flight.request
        # The last token is sampled, never fed: its KV does not exist.
        tokens = request.prompt_tokens + request.output_tokens - 1
        missing = store.missing(flight.stored, tokens)
        written = self._store_links.transfer(
            replica, replica, self._size(replica, missing), self._clock.now
        )
        visible = written + round(store.spec.publish_delay_us * 1000)
        self._clock.at(visible, Priority.ENGINE, partial(store.publish, flight.stored, tokens))

    def _offload(self, flight: _Flight, replica: str, tokens: int) -> None:
        """Copy what the turn has added to the memory beside the replica."""
        if self.tiers:
            tier = self.tiers[replica]
            done, publish = tier.keep(flight.request.segments, tokens, self._clock.now)
            self._clock.at(done, Priority.ENGINE, publish)

    def _size(self, replica: str, tokens: int) -> int:
        return round(tokens * self._bytes[replica])
