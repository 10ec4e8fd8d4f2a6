"""Public face of agentsched: the exception tree, and lazy access to what users import.

    from agentsched import RoutingScheduler, Route, run, load_run

Every folder may import the exceptions below, and nothing else from here: this module imports
nothing of the project until an exported name is asked for.

    AgentschedError                       exit 1
    |-- UsageError                        exit 2   bad flag, unknown name, impossible combination
    |   |-- InputError                    exit 2   a file is wrong: names file, line, field
    |   |   |-- SpecError                          a run specification
    |   |   `-- TraceError                         a workload trace
    |   |-- TopologyError                 exit 2   the model does not fit the hardware
    |   `-- PerformanceDataError          exit 2   no step times for what was asked
    |-- SchedulerError                    exit 1   a policy broke its contract
    |-- SimulationError                   exit 1   the simulator reached an impossible state
    |-- RunDirectoryError                 exit 1   a run directory is unreadable, locked or too old
    |-- InvalidRunError                   exit 3   finished, but the result must not be used
    `-- GateFailedError                   exit 4   a `--fail-if` condition was met
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from cli.main import main as main
    from harness.experiment import run as run
    from results.store import load_run as load_run
    from schedulers.base import AdmissionScheduler as AdmissionScheduler
    from schedulers.base import RoutingScheduler as RoutingScheduler
    from schedulers.base import Scheduler as Scheduler
    from schedulers.commands import Hold as Hold
    from schedulers.commands import Pause as Pause
    from schedulers.commands import Reject as Reject
    from schedulers.commands import Resume as Resume
    from schedulers.commands import Route as Route
    from schedulers.commands import WakeAt as WakeAt

__version__ = "0.1.0"


class AgentschedError(Exception):
    """Base of every error a user may see.

    Args:
        message: what went wrong, in one sentence.
        remedy: what the user can do about it, in one line.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.add_note(f"try: {remedy}")  # for those who call from Python and see a traceback

    def __reduce__(self) -> tuple[Any, ...]:
        # The default pickling calls cls(*args), which subclasses with other signatures break;
        # errors must cross process boundaries unchanged.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(
    cls: type[AgentschedError], args: tuple[Any, ...], state: dict[str, Any]
) -> AgentschedError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class UsageError(AgentschedError):
    """Bad flag, unknown name, or settings that cannot go together."""

    exit_code = 2


class InputError(UsageError):
    """A file holds something unusable. The message names file, line and field where known."""

    def __init__(
        self,
        message: str,
        remedy: str,
        *,
        file: str | Path | None = None,
        line: int | None = None,
        field: str | None = None,
    ) -> None:
        where = [str(file)] if file is not None else []
        where += [f"line {line}"] if line is not None else []
        where += [f"field `{field}`"] if field is not None else []
        super().__init__(f"{', '.join(where)}: {message}" if where else message, remedy)
        self.file, self.line, self.field = file, line, field


class SpecError(InputError):
    """A run specification is wrong."""


class TraceError(InputError):
    """A workload trace is wrong."""


class TopologyError(UsageError):
    """The model does not fit the hardware it was given."""


class PerformanceDataError(UsageError):
    """The step-time tables do not cover what was asked of them."""


class SchedulerError(AgentschedError):
    """A policy broke its contract; names the scheduler, the event and the time."""

    def __init__(self, scheduler: str, event: str, now_ns: int, problem: str) -> None:
        super().__init__(
            f"scheduler `{scheduler}` at {now_ns / 1e9:.6f} s, on {event}: {problem}",
            "fix the scheduler; CONTRIBUTING.md states the contract. Other cells are not affected.",
        )
        self.scheduler, self.event, self.now_ns = scheduler, event, now_ns


class SimulationError(AgentschedError):
    """The simulator reached a state it should not."""


class RunDirectoryError(AgentschedError):
    """A run directory cannot be read, written, or is used by another run."""


class NoRunError(RunDirectoryError):
    """The folder that was given holds no run."""

    exit_code = 2


class InvalidRunError(AgentschedError):
    """The run finished, but its result must not be used; the message says why."""

    exit_code = 3


class GateFailedError(AgentschedError):
    """A `--fail-if` condition was met."""

    exit_code = 4


_EXPORTS = {
    "main": "cli.main",
    "run": "harness.experiment",
    "load_run": "results.store",
    "Scheduler": "schedulers.base",
    "RoutingScheduler": "schedulers.base",
    "AdmissionScheduler": "schedulers.base",
    "Hold": "schedulers.commands",
    "Pause": "schedulers.commands",
    "Reject": "schedulers.commands",
    "Resume": "schedulers.commands",
    "Route": "schedulers.commands",
    "WakeAt": "schedulers.commands",
}


__all__ = [
    "AdmissionScheduler",
    "AgentschedError",
    "Hold",
    "Pause",
    "Reject",
    "Resume",
    "Route",
    "RoutingScheduler",
    "Scheduler",
    "WakeAt",
    "load_run",
    "run",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'agentsched' has no attribute {name!r}")


if __name__ == "__main__":
    sys.exit(import_module("cli.main").main())
