"""What turns cost, in seconds, as Headroom learns it from the turns themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from schedulers import events as ev
from schedulers.pools import prefillers
from schedulers.types import NS
from schedulers.views import ClusterView, ReplicaView


class Line:
    """Least squares of y on x, fading with a window of `keep` samples."""

    def __init__(self, keep: int = 512) -> None:
        self._fade = 1 - 1 / keep
        self.n = self.x = self.y = self.xx = self.xy = 0.0

    def add(self, x: float, y: float) -> None:
        for name, value in (("n", 1.0), ("x", x), ("y", y), ("xx", x * x), ("xy", x * y)):
            setattr(self, name, getattr(self, name) * self._fade + value)

    @property
    def slope(self) -> float:
        """Never negative; 0 until x has varied."""
        spread = self.n * self.xx - self.x * self.x
        if self.n < 8 or spread <= 1e-9 * max(1.0, self.xx):
            return 0.0
        return max(0.0, (self.n * self.xy - self.x * self.y) / spread)


@dataclass(slots=True)
class Sent:
    """A dispatch on its way."""

    at: int
    prefiller: str
    uncached: int
    ahead: int
    """Prefill tokens queued before it."""
    alongside: int
    """Turns in flight at the decoder then."""
    first_token: int | None = None


class Costs:
    """What turns cost, in seconds, as far as turns have shown it."""

    def __init__(self, default_rate: float) -> None:
        self._default = default_rate
        self._rates: dict[str, float] = {}
        self._decode: dict[str, Line] = {}
        self.output = 200.0
        """Mean output tokens of a turn; the first value is a guess that soon fades."""
        self.store_share = 0.0
        """Share of what a moved turn lacked that it found cached all the same: a shared store."""
        self._sent: dict[str, Sent] = {}

    def rate(self, replica: str) -> float:
        """Prefill tokens a second."""
        return self._rates.get(replica, self._default)

    def prefill_s(self, tokens: float, replica: str) -> float:
        return tokens / self.rate(replica)

    def turn_s(self, uncached: float, replica: ReplicaView, own: bool) -> float:
        """Seconds of a turn on a replica, and of the turns that it makes wait there.

        Args:
            own: one of the turns in flight there is the turn itself.
        """
        others = replica.in_flight - own
        prefill = self.prefill_s(uncached, replica.id)
        queued = self.prefill_s(replica.queued_prefill_tokens, replica.id)
        line = self._decode.get(replica.id)
        slope = line.slope if line is not None else 0.0
        return queued + prefill * (1 + others) + self.output * slope * others

    def sweep(self, replica: ReplicaView, capacity: float, use_store: bool) -> int:
        """Nanoseconds that computing the replica's whole KV takes. KV of one session saves its
        prefill, tokens / rate of the whole replica, and costs tokens / capacity of its room while
        a tool runs: it is worth its room for capacity / rate, less what a shared store saves."""
        if replica.capacity_tokens is None:
            return 0
        saved = self.store_share if use_store else 0.0
        return round((1 - saved) * capacity / self.rate(replica.id) * NS)

    def prefiller(
        self,
        decoder: ReplicaView,
        cluster: ClusterView,
        uncached: Callable[[ReplicaView], float],
        gain: float,
    ) -> ReplicaView | None:
        """A prefill replica, where that is cheaper than stalling the decoder.

        Args:
            uncached: tokens of the turn that a replica would compute.
            gain: seconds that it must save.
        """
        best, least = None, self._stall_s(decoder, uncached) - gain
        for replica in prefillers(cluster):
            cost = self._stall_s(replica, uncached)
            if cost < least:
                best, least = replica, cost
        return best

    def _stall_s(self, replica: ReplicaView, uncached: Callable[[ReplicaView], float]) -> float:
        """Seconds until the prompt is computed there, and of the turns that it makes wait."""
        tokens = uncached(replica) * (1 + replica.in_flight) + replica.queued_prefill_tokens
        return self.prefill_s(tokens, replica.id)

    def sent(self, turn: str, sent: Sent) -> None:
        self._sent[turn] = sent

    def first_token(self, turn: str, now: int) -> None:
        sent = self._sent.get(turn)
        if sent is None or sent.first_token is not None:
            return
        sent.first_token = now
        seconds, tokens = (now - sent.at) / NS, sent.uncached + sent.ahead
        if tokens >= 1024 and seconds > 0:
            before = self._rates.get(sent.prefiller, tokens / seconds)
            self._rates[sent.prefiller] = 0.9 * before + 0.1 * tokens / seconds

    def finished(self, event: ev.TurnFinished, moved_without: int | None) -> None:
        sent = self._sent.pop(event.turn_id, None)
        output = event.usage.output
        self.output += 0.02 * (output - self.output)
        if sent is not None and sent.first_token is not None and output > 1:
            line = self._decode.setdefault(event.replica, Line())
            line.add(sent.alongside, (event.now - sent.first_token) / NS / (output - 1))
        if moved_without and event.usage.cached is not None:
            known = event.usage.prompt - moved_without
            share = min(1.0, max(0.0, (event.usage.cached - known) / moved_without))
            self.store_share += 0.1 * (share - self.store_share)

    def dropped(self, turn: str) -> None:
        self._sent.pop(turn, None)
