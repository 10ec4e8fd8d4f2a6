"""The faults that are rehearsed, and what the table in the documentation says of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Row:
    """One fault as a test of this name rehearses it."""

    test: str
    fault: str
    sees: str
    """What the user sees."""
    retried: str
    freed: str
    where: str
    module: str


ROWS: list[Row] = []


def fault(
    fault: str, *, sees: str, retried: str, freed: str, where: str = "live"
) -> Callable[[Test], Test]:
    """Marks a test as the rehearsal of a fault."""

    def mark(test: Test) -> Test:
        ROWS.append(Row(test.__name__, fault, sees, retried, freed, where, test.__module__))
        return test

    return mark


def table() -> str:
    """The matrix in Markdown, in the order of the tests."""
    lines = ["| fault | what the user sees | retried | freed | rehearsed by |"]
    lines += ["|---|---|---|---|---|"]
    for row in ROWS:
        cells = (row.fault, row.sees, row.retried, row.freed, f"`{row.test}` ({row.where})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


__all__ = ["ROWS", "fault", "table"]
