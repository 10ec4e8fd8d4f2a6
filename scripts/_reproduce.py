"""What the reproduction scripts share: cells played or taken up again, verdicts, tables, figures.

A script makes a `Study`, plays runs into it, adds judged claims and tables, and writes all of it
to results/reproduction/NAME.{csv,md,tex,svg,png} and NAME.claims.json, from which STATUS.md is
made (`scripts/status.py`). Runs lie in runs/reproduce/, in a folder of the state of the code, so
that figures of two states never mix; the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from agentsched import InvalidRunError
from harness.experiment import run
from harness.overrides import Flags
from harness.plan import code_digest
from results.drawing import mark, style, to_png, to_svg
from results.formatting import interval as interval_text
from results.formatting import signed
from results.groups import Group, groups_of
from results.metrics import BY_TAG
from results.published import Claim, Ours, Verdict, claims, verdict
from results.render import latex_row, latex_text
from results.run import Run
from results.statistics import Estimate, bootstrap_generator, difference, estimate
from results.store import load_run
from results.verdicts import ours_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUT = Path("results") / "reproduction"
RUNS = Path("runs") / "reproduce"
FULL_SEEDS = 5

TAO_BASELINES = ("round-robin", "cache-aware", "dynamo", "thunderagent")
"""What TAO was compared with; ThunderAgent in its repaired form."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of the published setting is played."""

    seeds: int = FULL_SEEDS
    share: float = 1.0
    """Of the sessions that a script asks for."""
    jobs: int | None = None
    runs: Path = RUNS
    out: Path = OUT
    made_by: str | None = None
    """Digest of the code whose finished runs are shown; None: this one, and what is missing is
    played."""

    @property
    def digest(self) -> str:
        """Of the code that made the runs."""
        return self.made_by or code_digest()

    def sessions(self, wanted: int) -> int:
        return max(4, round(wanted * self.share))

    def workers(self, wanted: Sequence[int]) -> list[int]:
        """Fewer workers than sessions, also in a small trial."""
        return [max(2, round(n * min(1.0, self.share))) for n in wanted]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A claim with our figure, as STATUS.md shows it."""

    id: str
    published: str
    ours: str
    verdict: Verdict
    n: int
    setting: str
    why: str
    """What it hangs on, in numbers; why it could not be tested."""


STATES = "states.json"
"""Study -> digest of the code that made its output."""


@dataclass
class Study:
    """One reproduction script's output."""

    name: str
    title: str
    scale: Scale
    outcomes: list[Outcome] = field(default_factory=list)
    tables: list[tuple[str, pd.DataFrame]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def play(
        self,
        name: str,
        preset: str,
        *,
        sessions: int | None = None,
        workers: Sequence[int] | None = None,
        schedulers: Sequence[str] | None = None,
        workload: str | None = None,
        settings: Sequence[str] = (),
        seeds: int | None = None,
        valid: bool = True,
    ) -> Run:
        """Play a preset's cells that are not there yet, with so many sessions of each workload.

        Args:
            workload: another session profile in place of the preset's first, under its load.
            settings: `a.b=c`, as --set takes them.
            valid: raise if a cell is invalid; False where failing is what is shown.
        """
        more = list(settings)
        if workload is not None:
            more.append(f"workloads.0.name={workload}")
        if sessions is not None:
            more.append(f"workloads.0.sessions={self.scale.sessions(sessions)}")
        if workers is not None:
            loads = ",".join(map(str, self.scale.workers(workers)))
            more.append(f"workloads.0.workers=[{loads}]")
        flags = Flags(
            schedulers=schedulers,
            seeds=min(seeds or FULL_SEEDS, self.scale.seeds),
            assignments=more,
        )
        folder = self.scale.runs / self.scale.digest / name
        print(f"  {name}: {preset} ...", flush=True)
        if self.scale.made_by is not None:
            return load_run(folder)
        result = run(preset, out=folder, jobs=self.scale.jobs, flags=flags)
        try:
            result.check()
        except InvalidRunError as error:
            if valid:
                raise
            self.notes.append(f"{name}: {error.message}")
        return load_run(folder)

    def judge(
        self,
        claim_id: str,
        ours: Sequence[Ours],
        setting: str,
        why: str = "",
        *,
        text: str | None = None,
        published: str | None = None,
        follows_paper: bool = False,
    ) -> Outcome:
        """Hold our figures against a claim. `follows_paper` is for schedulers that follow the
        paper's text or code; TAO, SMetric and ConServe follow summaries."""
        claim = claim_named(claim_id)
        found = verdict(
            claim,
            list(ours),
            follows_paper=follows_paper,
            assumed_constants=claim.metric == "tokens_per_joule",
        )
        shown = text if text is not None else "; ".join(ours_text(claim, one) for one in ours)
        outcome = Outcome(
            id=claim_id,
            published=published or claim.text(),
            ours=shown or "n/a",
            verdict=found,
            n=min((one.n for one in ours), default=0),
            setting=setting,
            why=why,
        )
        self.outcomes.append(outcome)
        return outcome

    def judge_groups(
        self, claim_id: str, groups: Sequence[Group], setting: str, why: str = ""
    ) -> Outcome:
        """The same, with our figures read from tables, one a worker count."""
        claim = claim_named(claim_id)
        found = [ours_for(group, claim) for group in groups]
        return self.judge(claim_id, [one for one in found if one is not None], setting, why)

    def table(self, caption: str, rows: Sequence[Mapping[str, Any]] | pd.DataFrame) -> pd.DataFrame:
        frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows))
        self.tables.append((caption, frame))
        return frame

    def finish(self, *figures: tuple[str, Figure]) -> None:
        """Write tables, figures and claims; print the claims with their verdicts."""
        out = self.scale.out
        out.mkdir(parents=True, exist_ok=True)
        for index, (_, frame) in enumerate(self.tables):
            suffix = "" if index == 0 else f"-{index + 1}"
            (out / f"{self.name}{suffix}.csv").write_text(frame.to_csv(index=False), "utf-8")
        (out / f"{self.name}.md").write_text(self._markdown([name for name, _ in figures]), "utf-8")
        (out / f"{self.name}.tex").write_text(
            "\n".join(latex(caption, frame) for caption, frame in self.tables), "utf-8"
        )
        for name, figure in figures:
            with style():
                mark(figure, "simulated")
            (out / f"{name}.svg").write_text(to_svg(figure), "utf-8")
            (out / f"{name}.png").write_bytes(to_png(figure, dpi=110))
        text = json.dumps([asdict(one) for one in self.outcomes], indent=1, ensure_ascii=False)
        (out / f"{self.name}.claims.json").write_text(text + "\n", "utf-8")
        self._note_state(out / STATES)
        print(f"{self.title}")
        for one in self.outcomes:
            print(f"  {one.id:<46} published {one.published:<16} ours {one.ours}: {one.verdict}")

    def _note_state(self, path: Path) -> None:
        """Which state of the code this study's output is from."""
        states = json.loads(path.read_text("utf-8")) if path.exists() else {}
        states[self.name] = self.scale.digest
        path.write_text(json.dumps(states, indent=1, sort_keys=True) + "\n", "utf-8")

    def _markdown(self, figures: Sequence[str]) -> str:
        lines = [f"# {self.title}", "", "Simulated.", ""]
        for caption, frame in self.tables:
            lines += [caption, "", markdown(frame), ""]
        for name in figures:
            lines += [f"![{self.title}]({name}.svg)", ""]
        if self.notes:
            lines += ["Notes:", "", *(f"- {note}" for note in self.notes), ""]
        if self.outcomes:
            rows = [
                {
                    "claim": f"`{one.id}`",
                    "published": one.published,
                    "ours": one.ours,
                    "n": one.n,
                    "verdict": one.verdict,
                    "setting": one.setting,
                }
                for one in self.outcomes
            ]
            lines += ["Claims:", "", markdown(pd.DataFrame(rows)), ""]
        return "\n".join(lines)


# ---- figures of ours -------------------------------------------------------------------------


def claim_named(claim_id: str) -> Claim:
    return next(claim for claim in claims() if claim.id == claim_id)


def ours_text(claim: Claim, ours: Ours) -> str:
    """Our figure as a table shows it."""
    if claim.kind in ("absolute", "count") or claim.unit not in ("percent", "pp"):
        return level_text(Estimate(ours.value, ours.interval, ours.n))
    text = f"{ours.value:+.2f} pp" if claim.unit == "pp" else signed(ours.value)
    return text if ours.interval is None else f"{text} {interval_text(ours.interval)}"


def level_text(found: Estimate | None) -> str:
    """`812.3 [801, 820]`."""
    if found is None:
        return "n/a"
    if found.interval is None:
        return f"{found.mean:.4g}"
    return f"{found.mean:.4g} [{found.interval.low:.4g}, {found.interval.high:.4g}]"


def mean_of(values: Mapping[int, float] | Sequence[float]) -> Estimate | None:
    """Mean over seeds with its interval; None without values."""
    data = list(values.values()) if isinstance(values, Mapping) else list(values)
    return estimate(data, bootstrap_generator()) if data else None


def gain(
    values: Mapping[str, Mapping[int, float]], scheduler: str, against: Sequence[str], better: str
) -> Ours | None:
    """Improvement of one arm over the best of others, over common seeds."""
    assert better in ("lower", "higher")
    found = difference(
        values,
        scheduler,
        against,
        "lower" if better == "lower" else "higher",
        bootstrap_generator(),
    )
    return None if found is None else Ours(found.percent, found.interval, found.n)


def by_workers(run_: Run, workload: str | None = None) -> list[Group]:
    """A run's tables in order of workers, of one workload if it is named."""
    groups = [g for g in groups_of(run_) if workload in (None, g.workload)]
    return sorted(groups, key=lambda group: group.workers)


def level_rows(
    group: Group, setting: str, tags: Sequence[str], **more: Any
) -> list[dict[str, Any]]:
    """One row a scheduler: means with intervals."""
    rows = []
    for name in group.schedulers:
        row: dict[str, Any] = {"setting": setting, **more, "scheduler": name}
        for tag in tags:
            row[f"{BY_TAG[tag].title} ({BY_TAG[tag].unit})"] = level_text(
                group.figures(tag)[name].estimate
            )
        rows.append({**row, "n": group.seeds[name]})
    return rows


def seed_values(
    run_: Run, arm: str, value: Callable[[Mapping[str, Any]], float]
) -> dict[int, float]:
    """Seed -> a value computed from each summary of an arm."""
    return {
        cell.seed: value(summary)
        for cell, summary in run_.summaries.items()
        if cell.scheduler == arm
    }


def touchable(run_: Run, arm: str) -> float:
    """Share of task latency, in percent, that turns wait for their first token: what a scheduler
    that leaves decoding alone can at most remove."""
    turns, sessions = run_.turns, run_.sessions
    own = turns[(turns["scheduler"] == arm) & (turns["status"] == "ok")]
    done = sessions[(sessions["scheduler"] == arm) & (sessions["status"] == "finished")]
    keys = set(zip(done["cell"], done["session"], strict=True))
    kept = [key in keys for key in zip(own["cell"], own["session"], strict=True)]
    waited = (own["first_token"] - own["arrived"])[kept].sum()
    whole = (done["finished"] - done["started"]).sum()
    return float(100 * waited / whole) if whole else float("nan")


def mean(group: Group, tag: str, name: str) -> float:
    found = group.figures(tag)[name].estimate
    return float("nan") if found is None else found.mean


# ---- formats ---------------------------------------------------------------------------------


def markdown(frame: pd.DataFrame) -> str:
    heads = [str(column) for column in frame.columns]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in frame.itertuples(index=False)]
    return "\n".join(lines)


def latex(caption: str, frame: pd.DataFrame) -> str:
    """A tabular environment under its caption as a comment."""
    lines = [
        f"% {' '.join(caption.split())}",
        "\\begin{tabular}{" + "l" * len(frame.columns) + "}",
        "\\hline",
    ]
    lines += [latex_row(list(map(_tex, frame.columns))), "\\hline"]
    lines += [latex_row(list(map(_tex, row))) for row in frame.itertuples(index=False)]
    return "\n".join([*lines, "\\hline", "\\end{tabular}", ""])


def _cell(value: Any) -> str:
    if isinstance(value, (float, np.floating)):
        return f"{value:.4g}"
    return str(value).replace("|", "\\|")


def _tex(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, (float, np.floating)) else str(value)
    return latex_text(text)


# ---- command line ----------------------------------------------------------------------------


def main(study: Callable[[Scale], None], about: str | None) -> None:
    """Run a script from the command line."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=FULL_SEEDS)
    parser.add_argument("--share", type=float, default=1.0, help="of the sessions, for a trial")
    parser.add_argument("--jobs", type=int, help="cells at a time; as many as cores unless given")
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("-o", "--out", type=Path, default=OUT)
    parser.add_argument(
        "--made-by",
        metavar="DIGEST",
        help="play nothing: show again what the code of this digest (a folder of --runs) played",
    )
    given = parser.parse_args()
    study(Scale(given.seeds, given.share, given.jobs, given.runs, given.out, given.made_by))
