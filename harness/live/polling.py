"""Looks at the replicas: health, gauges, capacity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from harness.live.clock import Clock
from harness.live.driver import LiveDriver
from harness.live.gauges import Gauges, read_gauges
from harness.live.wire import Call, Request, Sender
from harness.sim.clock import Priority


@dataclass(frozen=True, slots=True)
class PollSettings:
    """How often replicas are looked at."""

    interval_s: float = 5.0
    """Between polls of the gauges (ThunderAgent's metrics interval)."""
    timeout_s: float = 10.0
    """A poll without an answer for this long counts as failed. Our choice."""
    failures: int = 3
    """Failed polls in a row after which a replica counts as lost. Our choice (SMG's default)."""
    retry_s: float = 1.0
    """Between looks at a replica that is lost or suspect. Our choice."""


class Fetch:
    """A small GET whose whole answer is handed over; status 0: no answer, and why."""

    def __init__(self, done: Callable[[int, bytes], None]) -> None:
        self._done: Callable[[int, bytes], None] | None = done
        self._status = 0
        self._parts: list[bytes] = []
        self.call: Call | None = None

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self._status = status

    def data(self, part: bytes) -> None:
        self._parts.append(part)

    def end(self) -> None:
        self._deliver(self._status)

    def lost(self, reason: str, *, unreachable: bool) -> None:
        self._parts = [reason.encode()]
        self._deliver(0)

    def give_up(self) -> None:
        if self._done is not None:
            if self.call is not None:
                self.call.cancel()
            self._deliver(0)

    def _deliver(self, status: int) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(status, b"".join(self._parts))


def get(sender: Sender, target: str, done: Callable[[int, bytes], None]) -> Fetch:
    fetch = Fetch(done)
    fetch.call = sender.send(Request("GET", target, {"accept": "*/*"}), fetch)
    return fetch


class Poller:
    """Polls every replica and tells the driver.

    Args:
        on_gauges: sees every page that was read, as (replica, gauges).
    """

    def __init__(
        self,
        driver: LiveDriver,
        senders: Mapping[str, Sender],
        clock: Clock,
        settings: PollSettings | None = None,
        on_gauges: Callable[[str, Gauges], None] | None = None,
    ) -> None:
        self._driver, self._senders, self._clock = driver, senders, clock
        self._settings = settings or PollSettings()
        self._on_gauges = on_gauges
        self._failures = dict.fromkeys(senders, 0)
        self._looking: set[str] = set()
        self.blind: set[str] = set()
        """Replicas whose metrics are not looked at (a fault to rehearse)."""
        self._stopped = False

    def start(self) -> None:
        """Poll now and from then on."""
        self._clock.at(self._clock.now, Priority.SAMPLE, self._round)

    def stop(self) -> None:
        self._stopped = True

    def suspect(self, replica: str) -> None:
        """A connection broke: look at the replica at once."""
        if replica not in self._looking:
            self._look(replica)

    def watch(self, replica: str) -> None:
        """The replica is lost: look again soon, until it is back."""
        delay = int(self._settings.retry_s * 1e9)
        self._clock.at(self._clock.now + delay, Priority.SAMPLE, partial(self._retry, replica))

    def _round(self) -> None:
        if self._stopped:
            return
        for replica in self._senders:
            if not (replica in self._looking | self.blind or self._driver.is_down(replica)):
                self._look(replica)
        interval = int(self._settings.interval_s * 1e9)
        self._clock.at(self._clock.now + interval, Priority.SAMPLE, self._round)

    def _retry(self, replica: str) -> None:
        if not self._stopped and self._driver.is_down(replica) and replica not in self._looking:
            self._look(replica)

    def _look(self, replica: str) -> None:
        self._looking.add(replica)
        fetch = get(self._senders[replica], "/metrics", partial(self._looked, replica))
        if replica in self._looking:
            limit = int(self._settings.timeout_s * 1e9)
            self._clock.at(self._clock.now + limit, Priority.SAMPLE, fetch.give_up)

    def _looked(self, replica: str, status: int, page: bytes) -> None:
        self._looking.discard(replica)
        if self._stopped:
            return
        if status == 0 or status >= 500:
            self._failed(replica)
            return
        self._failures[replica] = 0
        self._driver.recovered(replica)
        if status == 200:  # an engine without metrics is alive all the same
            gauges = read_gauges(page.decode("utf-8", "replace"))
            self._driver.sampled(replica, gauges.sample)
            if self._on_gauges is not None:
                self._on_gauges(replica, gauges)

    def _failed(self, replica: str) -> None:
        self._failures[replica] += 1
        if self._failures[replica] >= self._settings.failures:
            self._driver.lost(replica, "its metrics page does not answer")
        self._look_again(replica)

    def _look_again(self, replica: str) -> None:
        if self._driver.is_down(replica):
            self.watch(replica)
            return
        delay = int(self._settings.retry_s * 1e9)
        self._clock.at(self._clock.now + delay, Priority.SAMPLE, partial(self._suspected, replica))

    def _suspected(self, replica: str) -> None:
        if not self._stopped and replica not in self._looking:
            self._look(replica)


def server_info_capacity(body: bytes) -> int | None:
    """KV tokens from SGLang's `/get_server_info`."""
    tokens = _server_info(body).get("max_total_num_tokens")
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def server_info_bootstrap(body: bytes) -> int | None:
    """Bootstrap port of a prefill server, from SGLang's `/get_server_info`."""
    info = _server_info(body)
    port = info.get("disaggregation_bootstrap_port")
    prefill = info.get("disaggregation_mode") == "prefill"
    return port if prefill and isinstance(port, int) and port > 0 else None


def _server_info(body: bytes) -> dict[str, Any]:
    try:
        info = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return info if isinstance(info, dict) else {}
