"""Command-line flags, laid over a specification so that errors can name the flag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentsched import UsageError
from harness.specfile import Document, ValuePath, override, parse_value


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line says about a run; None where it says nothing."""

    engine: str | None = None
    model: str | None = None
    topology: str | None = None
    schedulers: Sequence[str] | None = None
    """Names, or file.py:Class."""
    routers: Sequence[str] | None = None
    workloads: Sequence[str] | None = None
    """Names, or paths of traces."""
    workers: Sequence[int] | None = None
    """For every workload."""
    seed: int | None = None
    seeds: int | None = None
    assignments: Sequence[str] = ()
    """`a.b=c`, applied last and in order."""


def lay_over(document: Document, flags: Flags) -> Document:
    """The document with the flags applied.

    Raises:
        UsageError: an assignment is malformed or leads nowhere.
    """
    for field in ("engine", "model", "topology"):
        value = getattr(flags, field)
        if value is not None:
            document = override(document, (field,), value, f"--{field} {value}")
    if flags.schedulers is not None:
        shown = " ".join(f"--scheduler {name}" for name in flags.schedulers)
        document = override(document, ("schedulers",), list(flags.schedulers), shown)
    if flags.routers is not None:
        shown = " ".join(f"--router {name}" for name in flags.routers)
        document = override(document, ("routers",), list(flags.routers), shown)
    if flags.workloads is not None:
        document = _with_workloads(document, flags.workloads)
    if flags.workers is not None:
        document = _with_workers(document, list(flags.workers))
    document = _with_seeds(document, flags.seed, flags.seeds)
    for text in flags.assignments:
        path, value = assignment(text)
        document = override(document, path, value, f"--set {text}")
    return document


def assignment(text: str) -> tuple[ValuePath, Any]:
    """The path and value in `a.b=c`; the value is YAML.

    Raises:
        UsageError: not of that form.
    """
    field, equals, value = text.partition("=")
    parts = field.strip().split(".")
    if not equals or not all(parts):
        raise UsageError(
            f"--set {text}: not of the form a.b=value", "as in --set sim.sampling_interval_s=1"
        )
    path = tuple(int(part) if part.isdecimal() else part for part in parts)
    return path, parse_value(value, f"--set {text}")


def _with_workloads(document: Document, names: Sequence[str]) -> Document:
    """Replace the workloads, keeping what the specification says of those it names itself."""
    given = document.data.get("workloads")
    known: Mapping[Any, Any] = {
        entry.get("name"): entry
        for entry in (given if isinstance(given, list) else [])
        if isinstance(entry, dict)
    }
    entries = [known.get(name, {"name": name}) for name in names]
    shown = " ".join(f"--workload {name}" for name in names)
    return override(document, ("workloads",), entries, shown)


def _with_workers(document: Document, workers: list[int]) -> Document:
    given = document.data.get("workloads")
    flag = f"--workers {','.join(map(str, workers))}"
    for index, entry in enumerate(given if isinstance(given, list) else []):
        if isinstance(entry, dict):
            document = override(document, ("workloads", index, "workers"), workers, flag)
    return document


def _with_seeds(document: Document, first: int | None, count: int | None) -> Document:
    if first is None and count is None:
        return document
    if first is None or count is None:
        value: Any = [first] if count is None else count
    else:
        value = list(range(first, first + min(max(count, 0), 100_000)))
    shown = [f"--seed {first}"] if first is not None else []
    shown += [f"--seeds {count}"] if count is not None else []
    return override(document, ("seeds",), value, " ".join(shown))
