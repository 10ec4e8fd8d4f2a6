"""How a run goes on: a bar with the time left on a terminal, a line for each cell elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cli.plan_lines import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from harness.cells import CellFailure
    from harness.experiment import Watcher
    from harness.plan import Plan
    from results.cells import CellId


@contextmanager
def show_progress(notes: Console, plan: Plan) -> Iterator[Watcher]:
    """A watcher that prints to `notes`."""
    if not notes.is_terminal:
        yield _Lines(notes, plan)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %", markup=False),
        TimeRemainingColumn(compact=True),
        TextColumn("left", markup=False),
        console=notes,
        transient=True,
    ) as bar:
        yield _Bar(notes, plan, bar)


class _Tally:
    """How many turns of the whole run are behind us."""

    def __init__(self, notes: Console, plan: Plan) -> None:
        self.notes = notes
        self.turns_of = {w.name: w.turns for w in plan.workloads}
        self.total_turns = sum(self.turns_of[cell.workload] for cell in plan.cells)
        self.cells = self.ended_cells = 0
        self.ended_turns = 0
        self.running: dict[CellId, int] = {}

    def started(self, total: int, kept: int) -> None:
        self.cells, self.ended_cells = total, kept
        if kept:
            self.notes.print(f"{kept} of {total} cells are done already and are kept")
        self.total_turns = self.total_turns * (total - kept) // total
        self.start = time.monotonic()

    def progressed(self, cell: CellId, sessions: int, turns: int) -> None:
        self.running[cell] = turns

    def ended(self, cell: CellId, failure: CellFailure | None) -> None:
        self.running.pop(cell, None)
        self.ended_cells += 1
        self.ended_turns += self.turns_of[cell.workload]

    def draining(self, cells: int) -> None:
        self.notes.print("stopping; running turns may end (Ctrl-C again stops at once)")

    @property
    def turns(self) -> int:
        return self.ended_turns + sum(self.running.values())


class _Bar(_Tally):
    def __init__(self, notes: Console, plan: Plan, bar: Progress) -> None:
        super().__init__(notes, plan)
        self._bar = bar
        self._task_id: TaskID | None = None

    def started(self, total: int, kept: int) -> None:
        super().started(total, kept)
        self._task_id = self._bar.add_task(self._label(), total=max(self.total_turns, 1))

    def progressed(self, cell: CellId, sessions: int, turns: int) -> None:
        super().progressed(cell, sessions, turns)
        self._show()

    def ended(self, cell: CellId, failure: CellFailure | None) -> None:
        super().ended(cell, failure)
        if failure is not None:
            self.notes.print(f"{cell.title}: failed")
        self._show()

    def _show(self) -> None:
        if self._task_id is not None:
            self._bar.update(self._task_id, completed=self.turns, description=self._label())

    def _label(self) -> str:
        return f"{self.ended_cells} of {self.cells} cells done"


class _Lines(_Tally):
    def ended(self, cell: CellId, failure: CellFailure | None) -> None:
        super().ended(cell, failure)
        elapsed = time.monotonic() - self.start
        left = elapsed * (self.total_turns - self.turns) / max(self.turns, 1)
        remaining = f"; about {duration(left)} left" if self.ended_cells < self.cells else ""
        how = "failed" if failure is not None else "done"
        self.notes.print(f"[{self.ended_cells}/{self.cells}] {cell.title}: {how}{remaining}")
