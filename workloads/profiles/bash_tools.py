"""Shell commands of coding agents: how long they run, and what they are called."""

from __future__ import annotations

import numpy as np

from agentsched import UsageError
from workloads.model import ToolCall
from workloads.profiles.laws import QuantileLaw, pick

SLOW = QuantileLaw(
    (
        (0.0, 0.01),
        (0.25, 0.05),
        (0.39, 0.5),
        (0.42, 4.0),
        (0.5, 6.6),
        (0.9, 10.8),
        (0.965, 15.0),
        (0.99, 26.0),
        (1.0, 308.0),
    )
)
"""AgentCgroup (arXiv 2602.09345), Bash calls with a local GLM, n = 3,263: p25 0.05, p50 6.6, p90
10.8, p99 26, maximum 308 s; 39 % below 0.5 s, 3 % from 0.5 to 4 s, 55 % from 4 to 15 s. Its mode at
7 s may be that testbed's sandbox. The minimum, 0.01 s, is assumed."""

FAST = QuantileLaw(
    (
        (0.0, 0.02),
        (0.24, 0.5),
        (0.5, 1.06),
        (0.9, 3.4),
        (0.91, 4.0),
        (0.95, 15.0),
        (0.99, 121.0),
        (1.0, 300.0),
    )
)
"""AgentCgroup, Bash calls with Haiku, n = 282: p50 1.06, p90 3.4, p99 121 s; 24 % below 0.5 s, 67 %
from 0.5 to 4 s, 4 % from 4 to 15 s. The minimum and maximum are assumed."""

_LAWS = {"slow": SLOW, "fast": FAST}

_SHORT_COMMANDS = {"cat": 0.28, "sed": 0.24, "grep": 0.22, "ls": 0.10, "find": 0.09, "git": 0.07}
"""Heads of commands that end within half a second; the mix is assumed."""
_LONG_COMMANDS = {
    "python": 0.45,
    "pytest": 0.28,
    "grep": 0.08,
    "sed": 0.07,
    "find": 0.06,
    "git": 0.06,
}
"""Heads of commands that take longer; the mix is assumed."""


def bash_law(variant: str) -> QuantileLaw:
    """The duration law of a variant, in seconds.

    Raises:
        UsageError: the variant is not `slow` or `fast`.
    """
    if variant not in _LAWS:
        raise UsageError(f"unknown tool variant {variant!r}", "use slow or fast")
    return _LAWS[variant]


def bash_calls(
    rng: np.random.Generator, count: int, variant: str, cap_s: float, hint_share: float
) -> list[ToolCall]:
    """`count` shell commands, named `bash:` and the head of the command.

    Args:
        variant: `slow` or `fast`.
        cap_s: a command that runs longer is stopped by the environment.
        hint_share: share of the commands of a second or more that are a `sleep N`, which states
            its duration; N is the duration's whole seconds.
    """
    seconds = np.round(np.minimum(bash_law(variant).draw(rng, count), cap_s), 4)
    short = pick(rng, _SHORT_COMMANDS, count)
    long = pick(rng, _LONG_COMMANDS, count)
    hinted = (rng.random(count) < hint_share) & (seconds >= 1.0)
    return [
        _call(float(seconds[i]), short[i], long[i], hinted=bool(hinted[i])) for i in range(count)
    ]


def _call(seconds: float, short: str, long: str, *, hinted: bool) -> ToolCall:
    if hinted:
        return ToolCall("bash:sleep", seconds, hint_s=float(int(seconds)))
    return ToolCall(f"bash:{short if seconds < 0.5 else long}", seconds)


def one_each(calls: list[ToolCall]) -> list[tuple[ToolCall, ...]]:
    """One call after every turn but the last, whose reply ends the session."""
    return [*((call,) for call in calls[:-1]), ()]
