"""Generated profiles against recordings: Kolmogorov-Smirnov distances, as Markdown tables.

    python -m scripts.profile_distances --weka DIR --lmcache DIR --automationbench DIR
        --terminal-bench DIR --azure DIR --mooncake DIR [--page docs/workloads.md]

Each folder holds one of the recordings named in docs/workloads.md; those not given are left out.
With --page, the tables replace what stands between the page's `distances` marks.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agentsched import UsageError
from workloads.model import Session
from workloads.profiles.generate import generate
from workloads.readers.convert import convert
from workloads.stats import Distance, distances, ks_distance

SEED = 1
BEGIN, END = "<!-- distances: begin -->", "<!-- distances: end -->"
_HEAD = "| quantity | KS | generated p50 / p90 | recorded p50 / p90 |\n|---|---|---|---|"


@dataclass(frozen=True, slots=True)
class Table:
    """One comparison."""

    title: str
    rows: tuple[Distance, ...]

    def markdown(self) -> str:
        """The table with its title above it."""
        lines = [self.title, "", _HEAD]
        for row in self.rows:
            unit = f", {row.unit}" if row.unit in ("s", "share") else ""
            first, second = (" / ".join(map(_number, pair)) for pair in (row.first, row.second))
            lines.append(f"| {row.quantity}{unit} | {row.ks:.2f} | {first} | {second} |")
        return "\n".join(lines) + "\n"


def weka(folder: Path) -> Iterator[Table]:
    """cc-interactive against the main agents of the Weka recording."""
    recorded = _mains(convert(folder))
    yield _sessions("cc-interactive", 1000, recorded, "main agents of the Weka recording")


def lmcache(folder: Path) -> Iterator[Table]:
    """Both SWE-bench profiles against the mini-swe-agent sessions of the LMCache recording."""
    recorded = [s for s in convert(folder) if s.workload == "lmcache-mini-swe-agent"]
    for name in ("swe-bench-mini-short", "swe-bench-mini"):
        yield _sessions(name, 1000, recorded, "mini-swe-agent sessions of the LMCache recording")


def azure(folder: Path) -> Iterator[Table]:
    """Background traffic against Azure's requests."""
    for name, file in (("azure-chat", "conv"), ("azure-code", "code")):
        recorded = convert(_file(folder, f"{file}.csv*"))
        yield _sessions(name, 4000, recorded, f"requests of Azure's {file} trace")


def mooncake(folder: Path) -> Iterator[Table]:
    """mooncake-chat against Mooncake's requests, which have no sessions: by request."""
    recorded = convert(_file(folder, "conversation_trace.jsonl*"))
    ours = [turn for s in generate("mooncake-chat", sessions=6000, seed=SEED) for turn in s.turns]
    theirs = [turn for session in recorded for turn in session.turns]
    yield Table(
        f"`mooncake-chat` ({len(ours):,} requests of 6,000 sessions) against {len(theirs):,} "
        "requests of Mooncake's conversation trace:",
        (
            _distance("prompt", "tokens", [t.prompt_tokens for t in ours],
                      [t.prompt_tokens for t in theirs]),
            _distance("output", "tokens", [t.output_tokens for t in ours],
                      [t.output_tokens for t in theirs]),
        ),
    )  # fmt: skip


def automationbench(folder: Path) -> Iterator[Table]:
    """automationbench against recorded runs, a session each."""
    rows = [row for row in _csv(folder / "sessions.csv") if row["model"] == "Qwen3.6-27B"]
    sessions = generate("automationbench", sessions=3000, seed=SEED)
    turns = [float(len(s.turns)) for s in sessions]
    calls = [float(row["num_model_calls"]) for row in rows]

    def compare(
        quantity: str, unit: str, ours: Callable[[Session], float], field: str, *, mean: bool
    ) -> Distance:
        one = [ours(s) / (turns[i] if mean else 1.0) for i, s in enumerate(sessions)]
        other = [float(row[field]) / (calls[i] if mean else 1.0) for i, row in enumerate(rows)]
        return _distance(quantity, unit, one, other)

    yield Table(
        f"`automationbench` (3,000) against {len(rows)} recorded runs of Qwen3.6-27B, a session "
        "each:",
        (
            _distance("turns a session", "turns", turns, calls),
            compare("prompt a turn, mean of a session", "tokens", _prompts, "input_tokens",
                    mean=True),
            compare("output a turn, mean of a session", "tokens", _outputs, "output_tokens",
                    mean=True),
            compare("tool calls a session", "calls", _calls, "num_tool_calls", mean=False),
            compare("tool time a session", "s", _tool_calls_s, "tool_time_s", mean=False),
        ),
    )  # fmt: skip


def terminal_bench(folder: Path) -> Iterator[Table]:
    """tb2-terminus2 against recorded trials, a trial each."""
    rows = [
        row
        for row in _csv(_file(folder, "trials.csv*"))
        if row["agent"] == "terminus-2" and _given(row, "n_api_requests", "api_seconds_total")
    ]
    counted = [row for row in rows if float(row["n_input_tokens"] or 0) > 0]
    sessions = generate("tb2-terminus2", sessions=3000, seed=SEED)
    many = [s for s in sessions if len(s.turns) > 1]
    yield Table(
        f"`tb2-terminus2` (3,000) against {len(rows):,} recorded trials, a trial each:",
        (
            _distance("turns a session", "turns", [len(s.turns) for s in sessions],
                      [_per(r, "n_api_requests") for r in rows]),
            _distance("prompt a turn, mean of a session", "tokens",
                      [_prompts(s) / len(s.turns) for s in sessions],
                      [_per(r, "n_input_tokens", "n_api_requests") for r in counted]),
            _distance("output a turn, mean of a session", "tokens",
                      [_outputs(s) / len(s.turns) for s in sessions],
                      [_per(r, "n_output_tokens", "n_api_requests") for r in counted]),
            _distance("tool and harness time a turn, mean of a session", "s",
                      [_tool_s(s) / (len(s.turns) - 1) for s in many],
                      [_idle(r) for r in rows if _given(r, "agent_execution_s")]),
            _distance("environment set-up", "s", [s.setup_s for s in sessions],
                      [_per(r, "env_setup_s") for r in rows if _given(r, "env_setup_s")]),
        ),
    )  # fmt: skip


STUDIES: dict[str, Callable[[Path], Iterator[Table]]] = {
    "weka": weka,
    "lmcache": lmcache,
    "automationbench": automationbench,
    "terminal-bench": terminal_bench,
    "azure": azure,
    "mooncake": mooncake,
}


def _sessions(profile: str, count: int, recorded: Sequence[Session], what: str) -> Table:
    found = distances(generate(profile, sessions=count, seed=SEED), recorded)
    return Table(
        f"`{profile}` ({count:,} sessions) against {len(recorded):,} {what}:", tuple(found)
    )


def _mains(sessions: Sequence[Session]) -> list[Session]:
    return [session for session in sessions if session.parent is None]


def _distance(quantity: str, unit: str, one: Sequence[float], other: Sequence[float]) -> Distance:
    ours, theirs = (np.sort(np.array(values, dtype=np.float64)) for values in (one, other))
    p50, p90 = (float(q) for q in np.quantile(ours, [0.5, 0.9]))
    q50, q90 = (float(q) for q in np.quantile(theirs, [0.5, 0.9]))
    return Distance(quantity, unit, ks_distance(ours, theirs), (p50, p90), (q50, q90))


def _prompts(session: Session) -> float:
    return float(sum(turn.prompt_tokens for turn in session.turns))


def _outputs(session: Session) -> float:
    return float(sum(turn.output_tokens for turn in session.turns))


def _calls(session: Session) -> float:
    return float(sum(len(turn.tools) for turn in session.turns))


def _tool_calls_s(session: Session) -> float:
    return sum(call.seconds for turn in session.turns for call in turn.tools)


def _tool_s(session: Session) -> float:
    return sum(turn.tool_seconds for turn in session.turns[:-1])


def _per(row: dict[str, str], name: str, by: str | None = None) -> float:
    return float(row[name]) / (float(row[by]) if by else 1.0)


def _idle(row: dict[str, str]) -> float:
    spent = float(row["agent_execution_s"]) - float(row["api_seconds_total"])
    return spent / float(row["n_api_requests"])


def _given(row: dict[str, str], *names: str) -> bool:
    return all(row[name] and (name != "n_api_requests" or float(row[name]) > 0) for name in names)


def _csv(path: Path) -> list[dict[str, str]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", newline="") as file:
        return list(csv.DictReader(file))


def _file(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise UsageError(f"{folder} has no {pattern}", "name the folder of that recording")
    return found[0]


def _number(value: float) -> str:
    if value >= 100_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _into(page: Path, text: str) -> None:
    whole = page.read_text(encoding="utf-8")
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"{page} has no marks", f"put {BEGIN} and {END} where tables go")
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or put them into a page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    for name in STUDIES:
        parser.add_argument(f"--{name}", type=Path, metavar="DIR")
    parser.add_argument("--page", type=Path, help="Put the tables into this page.")
    given = vars(parser.parse_args(arguments))
    try:
        tables = [
            table.markdown()
            for name, study in STUDIES.items()
            if (folder := given[name.replace("-", "_")]) is not None
            for table in study(folder)
        ]
        if not tables:
            parser.error("name at least one recording")
        text = "\n".join(tables)
        if given["page"] is None:
            print(text)
        else:
            _into(given["page"], text)
    except UsageError as error:
        print(f"error: {error.message}\n  try: {error.remedy}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
