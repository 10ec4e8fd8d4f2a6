"""results/reproduction/STATUS.md: every published figure, ours, and the verdict.

    python -m scripts.status

Made from what the reproduction scripts left in results/reproduction/*.claims.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from results.published import SIZE_TOLERANCE, VERDICTS, Claim, claims, tally
from schedulers.tao_config import TaoConfig
from scripts._reproduce import STATES, Outcome, Scale, main, markdown

PAPERS = {"tao": "TAO", "smetric": "SMetric", "conserve": "ConServe"}
PARAMETERS = {
    "tao.parameter.cache_half_life": "cache_half_life_s",
    "tao.parameter.readiness_horizon": "horizon_s",
    "tao.parameter.prediction_freshness": "fresh_s",
    "tao.parameter.default_duration": "default_duration_s",
    "tao.parameter.margin_delta": "margin_delta",
}
NO_CAUSE = ("reproduced", "shown")
READING = """
All figures of ours are **simulated**: no GPU took part, sessions are generated from published
distributions, step times come from tables (A40: a roofline; GLM-4.7: a proxy's). TAO, SMetric and
ConServe were implemented from summaries of their papers, so a figure that points the other way says
that our reading does not show the effect, not that the paper is wrong. Sessions are fewer than the
papers' task budgets (each table says n and the scripts say how many); mechanisms are not scaled.
Where schedulers tie, ours can come out a hair below zero, since the best of several baselines is
chosen anew in each resample. Nothing was tuned to make a verdict. `make reproduce` makes this page
and everything beside it.
"""


def write(scale: Scale) -> None:
    """Write STATUS.md beside the other output."""
    found = _outcomes(scale.out)
    rows = [_judged(claim, found) for claim in claims()]
    lines = ["# What of the papers' figures shows here", ""]
    lines += [*_totals(rows), *READING.strip().splitlines(), ""]
    lines += [*_states(scale.out), ""]
    lines += _thresholds()
    for paper, title in PAPERS.items():
        own = [(claim, row) for claim, row in rows if claim.paper == paper]
        lines += [f"## {title}", "", markdown(_table(own)), "", *_causes(own)]
    lines += _notes(scale.out)
    (scale.out / "STATUS.md").write_text("\n".join(lines).rstrip() + "\n", "utf-8")
    counts = tally(row.verdict for _, row in rows)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))


def _states(folder: Path) -> list[str]:
    """Which state of the code made which study's output."""
    states: dict[str, str] = json.loads((folder / STATES).read_text("utf-8"))
    studies: dict[str, list[str]] = {}
    for study, digest in sorted(states.items()):
        studies.setdefault(digest, []).append(study)
    lines = ["State of the code (harness, schedulers, workloads, results) behind the figures:", ""]
    for digest, names in sorted(studies.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(f"`{name}`" for name in names)
        lines.append(f"- `{digest}`: {shown if len(studies) > 1 else 'all studies'}")
    return lines


def _outcomes(folder: Path) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    for path in sorted(folder.glob("*.claims.json")):
        for row in json.loads(path.read_text("utf-8")):
            found[row["id"]] = Outcome(**row)
    return found


def _judged(claim: Claim, found: Mapping[str, Outcome]) -> tuple[Claim, Outcome]:
    if claim.id in found:
        return claim, found[claim.id]
    if claim.id in PARAMETERS:
        value = getattr(TaoConfig(), PARAMETERS[claim.id])
        return claim, _shown(claim, f"{value:g}", "the default setting")
    return claim, Outcome(
        claim.id, claim.text(), "n/a", "not testable", 0, "", "No script has measured it yet."
    )


def _shown(claim: Claim, ours: str, setting: str) -> Outcome:
    return Outcome(claim.id, claim.text(), ours, "shown", 0, setting, "")


def _totals(rows: Sequence[tuple[Claim, Outcome]]) -> list[str]:
    counts = {
        title: tally(row.verdict for claim, row in rows if claim.paper == paper)
        for paper, title in PAPERS.items()
    }
    whole = tally(row.verdict for _, row in rows)
    table = pd.DataFrame(
        [
            {
                "verdict": f"**{name}**",
                "all": whole[name],
                **{t: c[name] for t, c in counts.items()},
            }
            for name in VERDICTS
        ]
    )
    counted = sum(n for name, n in whole.items() if name != "shown")
    return [markdown(table), "", f"{counted} figures count, {whole['shown']} are shown.", ""]


def _thresholds() -> list[str]:
    lines = [
        "What a verdict means (`results/published.py`; intervals are 95 % bootstrap over seeds,"
        " expanded percentiles, docs/metrics.md):"
    ]
    lines += ["", *(f"- **{name}**: {meaning}." for name, meaning in VERDICTS.items())]
    return [*lines, f"- Size tolerance: {100 * SIZE_TOLERANCE:.0f} %.", ""]


def _table(rows: Sequence[tuple[Claim, Outcome]]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "claim": f"`{claim.id}`",
                "against": claim.comparator or "",
                "published": row.published,
                "ours": row.ours,
                "n": row.n or "",
                "verdict": row.verdict,
                "setting": row.setting,
            }
            for claim, row in rows
        ]
    )


def _causes(rows: Sequence[tuple[Claim, Outcome]]) -> list[str]:
    """Why, in numbers, for what is not reproduced; claims with the same cause together."""
    causes: dict[str, list[str]] = {}
    for claim, row in rows:
        if row.verdict not in NO_CAUSE and row.why:
            causes.setdefault(row.why, []).append(f"`{claim.id}` ({row.verdict})")
    if not causes:
        return []
    lines = ["What was found on those that are not reproduced:", ""]
    for why, names in causes.items():
        lines.append(f"- {', '.join(names)}: {why}")
    return [*lines, ""]


def _notes(folder: Path) -> list[str]:
    """Hypotheses and other findings, from the notes of each script's page."""
    lines = ["## Hypotheses, other profiles, and what else the scripts found", ""]
    for path in sorted(folder.glob("*.md")):
        if path.name == "STATUS.md":
            continue
        text = path.read_text("utf-8")
        title = text.splitlines()[0].removeprefix("# ")
        lines += [f"[{title}]({path.name})", ""]
        if "\nNotes:\n" in text:
            notes = text.split("\nNotes:\n", 1)[1].split("\nClaims:\n", 1)[0]
            lines += [*(line for line in notes.splitlines() if line.startswith("- ")), ""]
    return lines


if __name__ == "__main__":
    main(write, __doc__)
