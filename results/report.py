"""Reports as files: a self-contained page, Markdown, CSV, LaTeX, and the figures by themselves."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

from agentsched import RunDirectoryError, UsageError
from results import drawing, render
from results.cells import disk
from results.formatting import level
from results.groups import Group
from results.metrics import BY_TAG, MAIN, METRICS
from results.published import SIZE_TOLERANCE, VERDICTS, tally, tally_text
from results.run import Run
from results.sections import Picture, Section, sections
from results.tables import SHORT_UNITS, UNKNOWN, Row, table_of
from results.timelines import timelines
from results.verdicts import Judged

Format = Literal["html", "md", "csv", "latex", "svg", "png"]
FORMATS: tuple[Format, ...] = get_args(Format)
USUAL: tuple[Format, ...] = ("html", "md", "csv")


def write_report(
    runs: Run | Sequence[Run],
    out_dir: str | os.PathLike[str],
    formats: Sequence[str] = USUAL,
    *,
    tags: Sequence[str] = MAIN,
    baselines: Sequence[str] | None = None,
) -> list[Path]:
    """Writes a report on one or several runs; unfinished ones too, saying what is missing.

    Args:
        formats: any of html, md, csv, latex, svg, png.
        tags: metrics of the main table.
        baselines: schedulers to compare with; None: all others but own variants.

    Returns:
        The files, the page first if there is one.

    Raises:
        UsageError: an unknown format, metric or baseline.
        RunDirectoryError: no run holds a finished cell, or `out_dir` cannot be written.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise UsageError(f"no report format `{unknown[0]}`", f"formats: {', '.join(FORMATS)}")
    chosen = [runs] if isinstance(runs, Run) else list(runs)
    found = sections(chosen, tags, baselines)
    if not found:
        raise RunDirectoryError(
            f"{', '.join(str(run.path) for run in chosen)}: no finished cell to report on",
            "give the `agentsched run` command again to continue it",
        )
    out = Path(out_dir)
    contents = dict(_contents(chosen, found, formats))
    written = []
    with disk(out, "write the report"):
        for name, content in contents.items():
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            written.append(path)
    return written


def _contents(
    runs: Sequence[Run], found: Sequence[Section], formats: Sequence[str]
) -> Iterator[tuple[str, bytes]]:
    tables = [section.table for section in found]
    pictures = next((kind for kind in ("svg", "png") if kind in formats), None)
    if "html" in formats:
        yield "report.html", _page(runs, found).encode()
    if "md" in formats:
        yield "report.md", _markdown(runs, found, pictures).encode()
    if "csv" in formats:
        everything = [table_of(section.group, list(BY_TAG)) for section in found]
        yield "metrics.csv", render.to_csv(everything).encode()
    if "latex" in formats:
        yield "tables.tex", "\n".join(map(render.to_latex, tables)).encode()
    for section in found if pictures else ():
        for picture in section.figures:
            stem = f"figures/{section.id}-{picture.name}"
            if "svg" in formats:
                yield f"{stem}.svg", drawing.to_svg(picture.figure).encode()
            if "png" in formats:
                yield f"{stem}.png", drawing.to_png(picture.figure)


def missing(runs: Sequence[Run]) -> list[str]:
    """Every cell that is not done, one line each."""
    return [
        f"{run.name}: {state.cell.name}: {state.status}"
        + (f" ({state.error})" if state.error else "")
        for run in runs
        for state in run.unfinished()
    ]


def _title(runs: Sequence[Run]) -> str:
    return f"agentsched: {', '.join(run.name for run in runs)}"


def _markdown(runs: Sequence[Run], found: Sequence[Section], pictures: str | None) -> str:
    lines = [f"# {_title(runs)}", ""]
    gaps = missing(runs)
    if gaps:
        lines += ["## Missing", "", *(f"- {line}" for line in gaps), ""]
    judged = [one for section in found for one in section.judged]
    if judged:
        lines += [f"Published figures beside ours: {tally_text(j.verdict for j in judged)}.", ""]
    for section in found:
        lines.append(render.to_markdown(section.table))
        if section.judged:
            lines += ["| claim | published | ours | n | verdict |", "|---|---:|---:|---:|---|"]
            lines += [
                f"| {j.claim.id} | {j.claim.text()} | {j.ours_text()} | {j.n or ''} | {j.verdict} |"
                for j in section.judged
            ]
            lines.append("")
        if section.errors:
            lines += ["| scheduler | turns that were | error | count |", "|---|---|---|---:|"]
            lines += [
                f"| {' | '.join(map(render.markdown_text, texts))} | {n} |"
                for *texts, n in section.errors
            ]
            lines.append("")
        for picture in section.figures if pictures else ():
            name = f"figures/{section.id}-{picture.name}.{pictures}"
            lines += [f"![{picture.name}]({name})", "", picture.caption, ""]
    if judged:
        lines += ["## What the verdicts mean", ""]
        lines += [f"- {name}: {meaning}" for name, meaning in VERDICTS.items()]
        lines += [f"- size tolerance: {SIZE_TOLERANCE:.0%} of the published value", ""]
    return "\n".join(lines)


def _page(runs: Sequence[Run], found: Sequence[Section]) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    folder = files("results").joinpath("templates")
    texts = {name: folder.joinpath(name).read_text("utf-8") for name in _TEMPLATES}
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    judged = [verdict for section in found for verdict in section.judged]
    return environment.from_string(texts["report.html.j2"]).render(
        title=_title(runs),
        # Ours, not the user's, so it goes in as it is; everything else is escaped.
        css=Markup(texts["report.css"]),
        script=Markup(texts["report.js"]),
        runs=[_run_view(run) for run in runs],
        missing=missing(runs),
        tally=tally(j.verdict for j in judged) if judged else {},
        verdicts=VERDICTS,
        tolerance=f"{SIZE_TOLERANCE:.0%}",
        sections=[_section_view(section, Markup) for section in found],
    )


_TEMPLATES = ("report.html.j2", "report.css", "report.js")


def _run_view(run: Run) -> dict[str, str]:
    done = len(run.states) - len(run.unfinished())
    return {
        "label": run.label,
        "path": str(run.path),
        "cells": f"{done} of {len(run.states)} cells done",
        "manifest": json.dumps(run.manifest, indent=1, sort_keys=True),
    }


def _section_view(section: Section, markup: type[Any]) -> dict[str, Any]:
    table, group = section.table, section.group
    units = zip(table.headings, table.units, strict=True)
    view = {
        "id": section.id,
        "title": table.title,
        "label": group.kind,
        "headings": [f"{heading} ({unit})" if unit else heading for heading, unit in units],
        "rows": [_row_view(row, section) for row in table.rows],
        "captions": table.captions,
        "claims": [_claim_view(judged) for judged in section.judged],
        "figures": [_picture_view(picture, section.id, markup) for picture in section.figures],
        "errors": section.errors,
        "schedulers": group.schedulers,
        "all": list(_all_metrics(group)),
        "timelines": timelines(group, section.turns, section.sessions),
    }
    section.release()
    return view


def _picture_view(picture: Picture, prefix: str, markup: type[Any]) -> dict[str, Any]:
    svg = drawing.to_svg(picture.figure, inline=f"{prefix}-{picture.name}")
    return {"svg": markup(svg), "caption": picture.caption}


def _row_view(row: Row, section: Section) -> dict[str, Any]:
    cells = []
    for metric, entry in zip(section.table.metrics, row.entries, strict=True):
        figure = section.group.figures(metric.tag).get(row.name)
        own = figure.estimate if figure is not None and row.label != "published" else None
        change = f"{entry.change} {entry.range}".strip()
        cells.append(
            {
                "value": entry.value,
                "change": change,
                "best": entry.best,
                "sort": "" if own is None else own.mean,
            }
        )
    return {"name": row.name, "label": row.label, "note": row.note, "cells": cells}


def _all_metrics(group: Group) -> Iterator[Mapping[str, Any]]:
    for metric in METRICS:
        figures = group.figures(metric.tag)
        if all(figure.estimate is None for figure in figures.values()):
            continue
        yield {
            "tag": metric.tag,
            "unit": SHORT_UNITS.get(metric.unit, metric.unit),
            "formula": metric.formula,
            "cells": [
                {
                    "value": UNKNOWN if f.estimate is None else level(f.estimate),
                    "best": f.best,
                    "sort": "" if f.estimate is None else f.estimate.mean,
                }
                for f in (figures[name] for name in group.schedulers)
            ],
        }


def _claim_view(judged: Judged) -> dict[str, str]:
    claim = judged.claim
    return {
        "id": claim.id,
        "metric": claim.metric,
        "against": (claim.comparator or "").replace("_", " "),
        "published": claim.text(),
        "ours": judged.ours_text(),
        "n": str(judged.n or ""),
        "verdict": judged.verdict,
        "reason": judged.reason,
    }
