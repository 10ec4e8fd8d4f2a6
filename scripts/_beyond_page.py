"""The tables of docs/headroom.md, made from played cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from results.metrics import Better
from results.statistics import Difference, bootstrap_generator, difference

PAGE = Path("docs") / "headroom.md"
BOUND = "unlimited KV"
"""Label of the cells whose KV holds everything: what no scheduler of scarce KV can pass by much."""
METRICS: tuple[tuple[str, str, Better], ...] = (
    ("latency_mean", "task latency", "lower"),
    ("ttft_mean", "mean TTFT", "lower"),
    ("ttft_p95", "p95 TTFT", "lower"),
    ("decode_tps", "decode", "higher"),
)

GAIN, NEAR = 5, 1
"""Percent that count as a gain, and below which a loss is of no account. The first is the goal of
docs/headroom.md, the second our choice."""

Rows = Sequence[Mapping[str, str]]


def write_page(
    rows: Rows,
    others: Mapping[str, Sequence[str]],
    traces: Mapping[str, Sequence[str]],
    page: Path = PAGE,
) -> None:
    """Put the tables between their marks; what is not played yet is said."""
    text = page.read_text(encoding="utf-8")
    for name, table in (
        ("summary", summary_table(_of(rows, "matrix"), others)),
        ("matrix", matrix_table(_of(rows, "matrix"), others)),
        ("levels", levels_table(_of(rows, "matrix"), others)),
        ("traces", matrix_table(_of(rows, "traces"), traces)),
        ("trace levels", levels_table(_of(rows, "traces"), traces)),
        ("ablations", change_table(_of(rows, "ablations"), "headroom")),
        ("signals", change_table(_of(rows, "signals"), "right")),
    ):
        mark = f"<!-- {name}: python -m scripts.beyond page -->"
        end = f"<!-- end of {name} -->"
        pattern = re.compile(re.escape(mark) + ".*?" + re.escape(end), re.DOTALL)
        filled = f"{mark}\n{table or 'Not played yet.'}\n{end}"
        text = pattern.sub(filled.replace("\\", r"\\"), text)
    page.write_text(text, encoding="utf-8")


def _of(rows: Rows, study: str) -> Rows:
    return [row for row in rows if row["study"] == study]


def matrix_table(rows: Rows, others: Mapping[str, Sequence[str]]) -> str:
    """Differences against the best other scheduler of each metric, on the seeds that all have."""
    lines = [
        f"| {cell} | {len(seeds)} | {', '.join(rivals)} | {' | '.join(map(shown, gaps))} |"
        for cell, rivals, seeds, gaps in compared(rows, others)
    ]
    titles = " | ".join(title for _, title, _ in METRICS)
    return _table(f"| cell | seeds | others played | {titles} |", lines)


def summary_table(rows: Rows, others: Mapping[str, Sequence[str]]) -> str:
    """Of how many cells it is better, even or worse, by metric."""
    found = [gaps for *_, gaps in compared(rows, others)]
    lines = []
    for (_, title, _), gaps in zip(METRICS, zip(*found, strict=True), strict=bool(found)):
        known = [gap for gap in gaps if gap is not None and gap.interval is not None]
        better = [gap for gap in known if gap.interval is not None and gap.interval.low > 0]
        worse = [gap for gap in known if gap.interval is not None and gap.interval.high < 0]
        counts = (
            len(known),
            len(better),
            sum(gap.percent >= GAIN for gap in better),
            len(known) - len(better) - len(worse),
            len(worse),
            sum(gap.percent <= -NEAR for gap in worse),
        )
        lines.append(f"| {title} | {' | '.join(map(str, counts))} |")
    head = f"better | by {GAIN} % and more | interval has 0 | worse | by {NEAR} % and more"
    return _table(f"| metric | cells | {head} |", lines)


def compared(
    rows: Rows, others: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, list[str], list[int], list[Difference | None]]]:
    """(cell, others played, seeds that all have, gap in each metric) of the cells with any."""
    for cell, names in others.items():
        rivals = played_of(rows, cell, names)
        seeds = common_seeds(rows, cell, ["headroom", *rivals])
        if seeds and rivals:
            gaps = [
                difference(
                    values(rows, cell, metric, seeds),
                    "headroom",
                    rivals,
                    better,
                    bootstrap_generator(),
                )
                for metric, _, better in METRICS
            ]
            yield cell, rivals, seeds, gaps


def shown(gap: Difference | None) -> str:
    """`+3.1 % [+1.0, +5.2] (tao)`: positive is better for headroom."""
    if gap is None:
        return "n/a"
    interval = f" [{gap.interval.low:+.1f}, {gap.interval.high:+.1f}]" if gap.interval else ""
    return f"{gap.percent:+.1f} %{interval} ({gap.against})"


def levels_table(rows: Rows, others: Mapping[str, Sequence[str]]) -> str:
    """Task latency and p95 TTFT of everyone, means over the seeds that all have."""
    lines = []
    for cell, all_rivals in others.items():
        rivals = played_of(rows, cell, all_rivals)
        names = ["headroom", *rivals]
        seeds = common_seeds(rows, cell, names)
        if not seeds or not rivals:
            continue
        latency = values(rows, cell, "latency_mean", seeds)
        p95 = values(rows, cell, "ttft_p95", seeds)
        bound = _mean(latency.get(BOUND, {}), seeds)
        best = min(_mean(latency[name], seeds) or 0.0 for name in rivals)
        shown = ", ".join(
            f"{name} {_mean(latency[name], seeds):.0f} / {_mean(p95[name], seeds):.2f}"
            for name in names
        )
        limit = f"{bound:.0f}" if bound is not None else "n/a"
        most = f"{100 * (1 - bound / best):+.1f} %" if bound is not None else "n/a"
        lines.append(f"| {cell} | {shown} | {limit} | {most} |")
    head = "| cell | task latency (s) / p95 TTFT (s) | latency, unlimited KV (s) | most to gain |"
    return _table(head, lines)


def change_table(rows: Rows, base: str) -> str:
    """Mean task latency and p95 TTFT against `base`, on the seeds that both have."""
    cells = sorted({row["cell"] for row in rows})
    labels = list(dict.fromkeys(row["label"] for row in rows if row["label"] != base))
    lines = []
    for label in labels:
        shown = []
        for cell in cells:
            seeds = common_seeds(rows, cell, [base, label])
            shown.append(_change(rows, cell, label, base, seeds) if seeds else "not played")
        lines.append(f"| {label} | " + " | ".join(shown) + " |")
    return _table("| changed | " + " | ".join(cells) + " |", lines)


def _change(rows: Rows, cell: str, label: str, base: str, seeds: Sequence[int]) -> str:
    parts = []
    for metric in ("latency_mean", "ttft_p95"):
        found = values(rows, cell, metric, seeds)
        changed, before = _mean(found[label], seeds), _mean(found[base], seeds)
        if changed is None or not before:
            return "n/a"
        parts.append(f"{100 * (changed / before - 1):+.1f} %")
    return f"{parts[0]} (p95 {parts[1]})"


def played_of(rows: Rows, cell: str, names: Iterable[str]) -> list[str]:
    """Those with a row of the cell."""
    played = {row["label"] for row in rows if row["cell"] == cell}
    return [name for name in names if name in played]


def common_seeds(rows: Rows, cell: str, labels: Iterable[str]) -> list[int]:
    played = [
        {int(r["seed"]) for r in rows if r["cell"] == cell and r["label"] == label}
        for label in labels
    ]
    return sorted(set.intersection(*played))


def values(rows: Rows, cell: str, metric: str, seeds: Sequence[int]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["cell"] == cell and int(row["seed"]) in seeds:
            found.setdefault(row["label"], {})[int(row["seed"])] = float(row[metric])
    return found


def _mean(by_seed: Mapping[int, float], seeds: Sequence[int]) -> float | None:
    if not all(seed in by_seed for seed in seeds):
        return None
    return sum(by_seed[seed] for seed in seeds) / len(seeds)


def _table(head: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    rule = "|" + "---|" * (head.count("|") - 1)
    return "\n".join(["", head, rule, *lines, ""])
