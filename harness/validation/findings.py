"""What a validation found: tables with a label, and bounds that were kept or missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Figures as text, ready to be shown."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """A figure that must not be further from 0 than `limit`."""

    what: str
    value: float
    limit: float
    unit: str = "%"

    @property
    def kept(self) -> bool:
        return abs(self.value) <= self.limit

    def __str__(self) -> str:
        return f"{self.what}: {self.value:+.2f} {self.unit} (bound {self.limit:g} {self.unit})"


@dataclass(frozen=True, slots=True)
class Finding:
    """One validation: what was compared with what, and how it came out."""

    name: str
    title: str
    about: str
    """What was done, in a few sentences."""
    tables: tuple[Table, ...] = ()
    bounds: tuple[Bound, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: str | None = None
    """Why it could not be done here, and how it can."""

    @property
    def missed(self) -> list[Bound]:
        return [bound for bound in self.bounds if not bound.kept]


def percent(ours: float, theirs: float) -> float:
    """Signed difference of ours from theirs."""
    return 100 * (ours / theirs - 1)


def signed(value: float, digits: int = 2) -> str:
    return f"{value:+.{digits}f} %"


def markdown(findings: Sequence[Finding], command: str) -> str:
    """The page of the documentation."""
    lines = [
        "# Validation",
        "",
        f"Made by `{command}`; do not edit. Errors are signed: ours against the other's.",
        "",
    ]
    for finding in findings:
        lines += [f"## {finding.title}", "", finding.about, ""]
        if finding.skipped is not None:
            lines += [f"Not done: {finding.skipped}", ""]
        for table in finding.tables:
            lines += [f"**{table.title}**", "", *_pipe_table(table), ""]
        if finding.bounds:
            kept = [bound for bound in finding.bounds if bound.kept]
            lines += [f"{len(kept)} of {len(finding.bounds)} bounds are kept.", ""]
            lines += [f"- missed: {bound}" for bound in finding.missed]
            lines += [""] if finding.missed else []
        lines += [f"- {note}" for note in finding.notes]
        lines += [""] if finding.notes else []
    return "\n".join(lines).rstrip() + "\n"


def _pipe_table(table: Table) -> list[str]:
    rule = ["---", *["---:"] * (len(table.columns) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (table.columns, rule, *table.rows)]
