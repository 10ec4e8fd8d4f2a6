"""Several kinds of agents in one run, by weight, with ordinary chat beside them.

`mixed-agents` runs nothing itself: each task is run by the client process of the workload that it
comes from. The chat is no agent's: it is replayed beside them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from agentsched import UsageError
from workloads.agents.base import AgentDriver, AgentTask
from workloads.agents.limits import NAMES, split_limits
from workloads.arrivals import place
from workloads.catalog import load_workload
from workloads.model import Session

NAME = "mixed-agents"
DEFAULT_PARTS: Mapping[str, float] = {
    "swe-bench-standin": 2.0,
    "terminal-bench-standin": 1.0,
    "automationbench-synthetic": 1.0,
}
"""Weights. Our choice: no mix is published."""


@dataclass(frozen=True, slots=True)
class BackgroundSettings:
    """Chat beside the agents: sessions of a generated or recorded workload that come by
    themselves, from the first task to the end of the last."""

    workload: str = "azure-chat"
    """A generated or shipped workload, or the path of a trace."""
    rate_per_s: float | None = 0.5
    """Sessions a second on average; None, of recorded arrivals: as fast as recorded."""
    process: str = "poisson"
    """`poisson`, `gamma` (bursty) or `recorded`."""
    variation: float = 3.0
    """Of gamma arrivals: standard deviation of the gaps over their mean."""
    sessions: int = 2000
    """How many there are; a cell in which they run out is invalid. Our choice: an hour's."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of a generated workload."""

    def load(self, seed: int) -> list[Session]:
        """The sessions, with arrivals in seconds from the first task on.

        Raises:
            UsageError: unknown workload, process or setting.
            TraceError: the trace cannot be read.
        """
        sessions = load_workload(
            self.workload, sessions=self.sessions, seed=seed, settings=dict(self.settings)
        )
        return place(sessions, self.process, self.rate_per_s, seed, variation=self.variation)


@dataclass(frozen=True, slots=True)
class MixedSettings:
    """Settings of `mixed-agents`."""

    parts: Mapping[str, float] = field(default_factory=lambda: DEFAULT_PARTS)
    """Agent workloads by weight."""
    part_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Their own settings, by workload."""
    background: BackgroundSettings | None = None
    """Chat beside them; None: there is none."""

    def of(self, part: str) -> Mapping[str, Any]:
        """Settings of one part."""
        return self.part_settings.get(part, {})


def read_settings(given: Mapping[str, Any]) -> MixedSettings:
    """Settings out of a specification; limits of client processes may be among them.

    Raises:
        UsageError: names the setting.
    """
    _, own = split_limits(given)
    _refuse_unknown(own, MixedSettings, NAME)
    parts = _weights(own.get("parts", DEFAULT_PARTS))
    settings = _mapping(own.get("part_settings") or {}, "part_settings")
    for part, values in settings.items():
        if part not in parts:
            raise UsageError(
                f"part_settings: `{part}` is no part of the mix", f"one of {', '.join(parts)}"
            )
        for name in _mapping(values or {}, f"part_settings.{part}"):
            if name in NAMES:
                raise UsageError(
                    f"part_settings.{part}: `{name}` is a limit on all client processes",
                    f"set `{name}` beside `parts`",
                )
    return MixedSettings(
        parts,
        {part: dict(values or {}) for part, values in settings.items()},
        _background(own.get("background")),
    )


def _weights(given: Any) -> dict[str, float]:
    from workloads.agents.registry import DRIVERS

    parts = _mapping(given, "parts")
    for part, weight in parts.items():
        if part == NAME or part not in DRIVERS:
            known = ", ".join(name for name in DRIVERS if name != NAME)
            raise UsageError(f"parts: no agent runs the workload `{part}`", f"one of {known}")
        number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not number or not 0 < weight < 1e9:
            raise UsageError(f"parts: the weight of {part} cannot be {weight!r}", "above 0")
    if not parts:
        raise UsageError("parts: the mix is empty", "name a workload, such as swe-bench-lite: 1")
    return {part: float(weight) for part, weight in parts.items()}


def _background(given: Any) -> BackgroundSettings | None:
    if given is None:
        return None
    values = _mapping(given, "background")
    _refuse_unknown(values, BackgroundSettings, "background")
    found = BackgroundSettings(**values)
    counts = isinstance(found.sessions, int) and not isinstance(found.sessions, bool)
    for name in ("rate_per_s", "variation"):
        value = getattr(found, name)
        if not (value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))):
            raise UsageError(f"background: `{name}` cannot be {value!r}", "give a number")
    if not counts or found.sessions < 1:
        raise UsageError(f"background: `sessions` cannot be {found.sessions!r}", "1 or more")
    _mapping(found.settings, "background.settings")
    return found


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"`{name}` cannot be {value!r}", "give a mapping of names to values")
    return value


def _refuse_unknown(given: Mapping[str, Any], kind: type, whose: str) -> None:
    names = [one.name for one in fields(kind)]
    for name in given:
        if name not in names:
            raise UsageError(f"{whose} has no setting `{name}`", f"it has {', '.join(names)}")


class MixedAgents:
    """`mixed-agents`."""

    name = NAME
    about = "several agent workloads by weight, with chat beside them where wanted"

    def check(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        """Versions of what the parts need.

        Raises:
            UsageError: something is missing or a setting is wrong.
        """
        read, versions = read_settings(settings), dict[str, str]()
        for part in read.parts:
            try:
                versions |= _driver(part).check(read.of(part))
            except UsageError as error:
                raise UsageError(f"{part}: {error.message}", error.remedy) from None
        if read.background is not None:
            read.background.load(0)
        return versions

    def tasks(
        self, settings: Mapping[str, Any], *, sessions: int | None, seed: int
    ) -> Sequence[AgentTask]:
        """The parts' tasks, as many of each as the weights say, in an order drawn from the seed.

        Args:
            sessions: how many in all; None: as many as there are until one part runs out.

        Raises:
            UsageError: a part's task set cannot be had.
            InputError: a part's file of tasks is wrong.
        """
        read, found = read_settings(settings), dict[str, Sequence[AgentTask]]()
        if sessions is None:
            found = {part: self._tasks(read, part, None, seed) for part in read.parts}
            total = sum(read.parts.values())
            most = min(len(found[part]) * total / weight for part, weight in read.parts.items())
            sessions = max(1, int(most + 1e-9))
        counts = {part: n for part, n in share_out(read.parts, sessions).items() if n}
        order = [part for part, count in counts.items() for _ in range(count)]
        random.Random(f"{seed}/mix").shuffle(order)
        left = {
            part: iter(found.get(part) or self._tasks(read, part, count, seed))
            for part, count in counts.items()
        }
        return [_of_part(next(left[part]), part) for part in order]

    def _tasks(
        self, read: MixedSettings, part: str, sessions: int | None, seed: int
    ) -> Sequence[AgentTask]:
        return _driver(part).tasks(read.of(part), sessions=sessions, seed=seed)

    def command(self, settings: Mapping[str, Any]) -> Sequence[str]:
        """None of its own.

        Raises:
            UsageError: always; `part_of` has the driver to ask.
        """
        raise UsageError("a mix has no client process of its own", "ask the driver of a part")

    def environment(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        """Nothing."""
        return {}

    def script(self, folder: Path, settings: Mapping[str, Any]) -> Path | None:
        """The scripts of all parts, whose lines name the tasks that they belong to."""
        read, texts = read_settings(settings), list[str]()
        for part in read.parts:
            below = folder / f"script-{part}"
            below.mkdir()
            path = _driver(part).script(below, read.of(part))
            if path is not None:
                texts.append(path.read_text(encoding="utf-8"))
        if not texts:
            return None
        merged = folder / f"{NAME}.jsonl"
        merged.write_text("".join(texts), encoding="utf-8")
        return merged


def part_of(
    driver: AgentDriver, settings: Mapping[str, Any], part: str
) -> tuple[AgentDriver, Mapping[str, Any]]:
    """The driver that runs a part of a mix, and its settings; a driver that is no mix itself."""
    if not part:
        return driver, settings
    return _driver(part), read_settings(settings).of(part)


def background_of(workload: str, settings: Mapping[str, Any]) -> BackgroundSettings | None:
    """The chat beside an agent workload; None: there is none."""
    return read_settings(settings).background if workload == NAME else None


def background_name(workload: str, background: BackgroundSettings, workers: int) -> str:
    """What the chat's own figures are called, such as `azure-chat-beside-mixed-agents-4w`."""
    chat = Path(background.workload).name.removesuffix(".gz").removesuffix(".jsonl")
    return f"{chat}-beside-{workload}-{workers}w"


def share_out(weights: Mapping[str, float], count: int) -> dict[str, int]:
    """Whole numbers that add up to `count`, as near to the weights as can be (largest remainders,
    the first of equals first)."""
    total = sum(weights.values())
    exact = {name: count * weight / total for name, weight in weights.items()}
    shares = {name: int(value) for name, value in exact.items()}
    by_rest = sorted(exact, key=lambda name: shares[name] - exact[name])
    for name in by_rest[: count - sum(shares.values())]:
        shares[name] += 1
    return shares


def _driver(part: str) -> AgentDriver:
    from workloads.agents.registry import find_driver

    return find_driver(part)


def _of_part(task: AgentTask, part: str) -> AgentTask:
    return AgentTask(task.id, task.payload, task.timeout_s, part)
