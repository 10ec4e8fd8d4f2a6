"""`agentsched trace`: convert, mix, describe, compare and check workload traces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentsched import UsageError
from cli.console import print_columns

if TYPE_CHECKING:
    from workloads.model import Session

app = typer.Typer(
    no_args_is_help=True, help="Convert, mix, describe, compare and check workload traces."
)

SOURCE = Annotated[
    str,
    typer.Argument(metavar="SOURCE", help="A trace or recording, a folder of them, or a workload."),
]
FORMAT = Annotated[
    str | None,
    typer.Option("--from", "--format", help="Format of the source; found out unless given."),
]
SET = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the reader; repeatable."),
]


@app.command("stat")
def stat(
    source: SOURCE,
    context_limit: Annotated[
        int | None, typer.Option(min=1, help="Also tell how many sessions pass it (tokens).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="For generated workloads.")] = 0,
    format_: FORMAT = None,
    settings: SET = None,
) -> None:
    """Describe a trace or workload: sessions, turns, tokens, tools, possible reuse."""
    from workloads.stats import share_over, trace_stats

    stats = trace_stats(_sessions(source, seed, format_, settings))
    for name, origin, count in stats.workloads:
        print(f"{name} ({origin}): {count:,} sessions")
    print(
        f"{stats.turns:,} turns, {stats.tool_calls:,} tool calls, {stats.sub_agents:,} sub-agents, "
        f"{stats.compactions:,} compactions"
    )
    print(f"{stats.prompt_tokens:,} prompt tokens, {stats.output_tokens:,} output tokens")
    print(
        f"{stats.reuse_share:.1%} of prompt tokens could come from a cache without limit, "
        f"{stats.kept_share:.1%} from the same session"
    )
    if context_limit is not None:
        share = share_over(_sessions(source, seed, format_, settings), context_limit)
        print(f"{share:.1%} of sessions pass {context_limit:,} tokens")
    print_columns(
        ("quantity", "unit", "count", "mean", "p50", "p90", "p99", "max"),
        [
            (
                row.quantity,
                row.unit,
                f"{row.count:,}",
                *(f"{x:,.4g}" for x in (row.mean, row.p50, row.p90, row.p99, row.maximum)),
            )
            for row in stats.rows
        ],
    )


@app.command("compare")
def compare(
    first: SOURCE,
    second: SOURCE,
    seed: Annotated[int, typer.Option(min=0, help="For generated workloads.")] = 0,
    sub_agents: Annotated[
        bool, typer.Option("--sub-agents", help="Sub-agents too, not only top-level sessions.")
    ] = False,
) -> None:
    """How far two traces or workloads are apart: Kolmogorov-Smirnov distances, 0 (equal) to 1."""
    from workloads.stats import distances

    one, other = (
        [s for s in _sessions(name, seed, None, None) if sub_agents or s.parent is None]
        for name in (first, second)
    )
    print_columns(
        ("quantity", "unit", "KS", "first p50", "first p90", "second p50", "second p90"),
        [
            (
                row.quantity,
                row.unit,
                f"{row.ks:.2f}",
                *(f"{value:,.4g}" for value in (*row.first, *row.second)),
            )
            for row in distances(one, other)
        ],
    )


@app.command("validate")
def validate(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A trace or recording, or a folder of them.")
    ],
    format_: FORMAT = None,
) -> None:
    """Check a trace; the first fault is named with its line, field and remedy."""
    from workloads.readers.convert import read_any

    sessions = turns = 0
    for session in read_any(source, format_):
        sessions, turns = sessions + 1, turns + len(session.turns)
    print(f"{source}: valid; sessions {sessions:,}, turns {turns:,}")


@app.command("convert")
def convert(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A recorded file, or its folder.")
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The trace to write: .jsonl or .jsonl.gz.")
    ],
    format_: FORMAT = None,
    to: Annotated[
        str, typer.Option("--to", help="native, aiperf or mooncake (with sessions).")
    ] = "native",
    sample: Annotated[
        int | None, typer.Option(min=1, help="Keep so many sessions, at even ranks of length.")
    ] = None,
    settings: SET = None,
) -> None:
    """Turn a recording into a native trace, or into one that other tools read.

    Reads mini-swe-agent trajectories, Harbor's ATIF, Claude Code session logs, ThunderAgent step
    profiles, AIPerf and Dynamo traces, Mooncake, Azure, Bailian, TraceLab, ABench, Weka, LMCache.
    """
    from workloads.readers.convert import convert as read_all
    from workloads.readers.convert import quantile_sample, read_any

    _check_out(out, [source], packed=to == "native")
    given = _given(settings)
    if sample is None:
        _write(out, read_any(source, format_, given), to)
    else:
        _write(out, iter(quantile_sample(read_all(source, format_, given), sample)), to)


@app.command("mix")
def mix(
    parts: Annotated[
        list[str],
        typer.Argument(metavar="NAME=WEIGHT...", help="Workloads or traces; no weight means 1."),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The native trace: .jsonl or .jsonl.gz.")
    ],
    sessions: Annotated[int, typer.Option(min=1, help="How many sessions, all parts together.")],
    seed: Annotated[int, typer.Option(min=0, help="Of the draws and the arrivals.")] = 0,
    arrivals: Annotated[
        str | None,
        typer.Option(help="poisson, gamma (bursty) or recorded; none: workers take sessions up."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Sessions a second; recorded arrivals may go without.")
    ] = None,
    variation: Annotated[
        float, typer.Option(help="Of gamma arrivals: spread of the gaps over their mean.")
    ] = 3.0,
) -> None:
    """Mix workloads by weight into one trace, with arrivals if asked for."""
    from workloads.arrivals import place
    from workloads.mixing import mixed_sessions
    from workloads.profiles.mixed import mix_weights

    weights = mix_weights(parts)
    _check_out(out, [Path(name) for name in weights])
    found = mixed_sessions(weights, sessions, seed)
    if arrivals is not None:
        found = place(found, arrivals, rate, seed, variation=variation)
    elif rate is not None:
        raise UsageError("--rate without --arrivals", "add --arrivals poisson, gamma or recorded")
    _write(out, iter(found), "native")


def _sessions(
    source: str, seed: int, format_: str | None, settings: list[str] | None
) -> Iterator[Session]:
    """Sessions of a workload by its name, or of a recording, one at a time."""
    from workloads.catalog import load_workload, workload_names
    from workloads.readers.convert import read_any

    if source in workload_names() or not Path(source).exists():
        return iter(load_workload(source, sessions=None, seed=seed))
    return read_any(source, format_, _given(settings))


def _check_out(out: Path, sources: list[Path], *, packed: bool = True) -> None:
    if not out.name.endswith((".jsonl", ".jsonl.gz") if packed else ".jsonl"):
        wanted = ".jsonl or .jsonl.gz" if packed else ".jsonl"
        raise UsageError(f"-o {out}: not the name of a trace", f"end it in {wanted}")
    for source in sources:
        if out.exists() and source.exists() and _holds(source, out):
            raise UsageError(f"-o {out}: is the source itself", "write to another file")


def _holds(source: Path, out: Path) -> bool:
    if source.is_dir():
        return out.resolve().is_relative_to(source.resolve())
    return out.samefile(source)


def _write(out: Path, sessions: Iterator[Session], to: str) -> None:
    from workloads.export import write_rows
    from workloads.trace import write_trace

    if to == "native":
        print(f"{out}: {write_trace(out, sessions):,} sessions")
    else:
        print(f"{out}: {write_rows(out, sessions, to):,} turns")


def _given(settings: list[str] | None) -> dict[str, object]:
    given: dict[str, object] = {}
    for item in settings or ():
        name, equals, text = item.partition("=")
        if not name or not equals:
            raise UsageError(f"--set {item}: not NAME=VALUE", "as --set output_tokens_per_s=50")
        given[name.strip()] = _value(text.strip())
    return given


def _value(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
