"""Commands: what a policy decides, and the control plane carries out.

`why` is a short reason in words for the decision log; it never changes behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

NO_ANNOTATIONS: Mapping[str, int | float | str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Command:
    pass


@dataclass(frozen=True, slots=True)
class Route(Command):
    """Dispatch the turn to replica `decode` now; `prefill` names a separate prefill replica.

    The session's home becomes `decode` and the session is active. Annotations are the
    whitelisted request fields a policy may set: `priority`, `retention_s`.
    """

    turn_id: str
    decode: str
    prefill: str | None = None
    annotations: Mapping[str, int | float | str] = field(default_factory=lambda: NO_ANNOTATIONS)
    why: str = ""


@dataclass(frozen=True, slots=True)
class Hold(Command):
    """The turn waits at the gateway until a Resume of its session, or a Route or Reject of it."""

    turn_id: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Pause(Command):
    """The session loses its place (home becomes None, lifecycle `paused`).

    A running engine request is never stopped: if one is in flight it ends normally, and the
    session's next turn must be held until a Resume.
    """

    session: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Resume(Command):
    """The session gets a place on `replica`; its waiting turns are dispatched there at once."""

    session: str
    replica: str
    annotations: Mapping[str, int | float | str] = field(default_factory=lambda: NO_ANNOTATIONS)
    why: str = ""


@dataclass(frozen=True, slots=True)
class Reject(Command):
    """Refuse the turn (HTTP 429 at a gateway)."""

    turn_id: str
    reason: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Abort(Command):
    """Cancel a dispatch that has delivered no token yet; its turn comes back as DispatchFailed."""

    attempt: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class WakeAt(Command):
    """Ask for a Timer event at `time` (nanoseconds; now or later)."""

    time: int


@dataclass(frozen=True, slots=True)
class Solve(Command):
    """Run `solver(snapshot)` off the event loop; a PlanReady with `solve_id` brings the result.

    `solver` is a pure module-level function and `snapshot` a plain value, so that both can be
    sent to a worker process. In simulation the latency is a setting, not the machine's speed.
    """

    solve_id: int
    snapshot: Any
    solver: Callable[[Any], Any]
