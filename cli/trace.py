"""`agentsched trace`: convert, describe and check workload traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentsched import UsageError
from cli.console import print_columns

app = typer.Typer(no_args_is_help=True, help="Convert, describe and check workload traces.")

TRACE = Annotated[
    Path, typer.Argument(metavar="TRACE", help="A native trace, .jsonl or .jsonl.gz.")
]


@app.command("stat")
def stat(
    trace: Annotated[str, typer.Argument(metavar="TRACE|WORKLOAD", help="A trace or a name.")],
    context_limit: Annotated[
        int | None, typer.Option(min=1, help="Also tell how many sessions pass it (tokens).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="For generated workloads.")] = 0,
) -> None:
    """Describe a trace or workload: sessions, turns, tokens, tools, possible reuse."""
    from workloads.catalog import load_workload
    from workloads.stats import share_over, trace_stats

    sessions = load_workload(trace, sessions=None, seed=seed)
    stats = trace_stats(sessions)
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
        share = share_over(sessions, context_limit)
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


@app.command("validate")
def validate(trace: TRACE) -> None:
    """Check a native trace; the first fault is named with its line, field and remedy."""
    from workloads.trace import load_trace

    sessions = load_trace(trace)
    turns = sum(len(session.turns) for session in sessions)
    print(f"{trace}: valid; sessions {len(sessions):,}, turns {turns:,}")


@app.command("convert")
def convert(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A recorded file, or its folder.")
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The native trace: .jsonl or .jsonl.gz.")
    ],
    format_: Annotated[
        str | None,
        typer.Option("--format", help="Of the source; found out from its first line unless given."),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Keep so many sessions, at even ranks of length.")
    ] = None,
) -> None:
    """Turn a trace of another format (LMCache, Weka, Mooncake, Azure) into a native one."""
    from workloads.readers.convert import convert as read_all
    from workloads.readers.convert import data_file, quantile_sample, read_any
    from workloads.trace import write_trace

    if out.suffix not in (".jsonl", ".gz"):
        raise UsageError(f"-o {out}: not the name of a trace", "end it in .jsonl or .jsonl.gz")
    if out.exists() and out.samefile(data_file(source)):
        raise UsageError(f"-o {out}: is the source itself", "write to another file")
    if sample is None:
        count = write_trace(out, read_any(source, format_))
    else:
        count = write_trace(out, quantile_sample(read_all(source, format_), sample))
    print(f"{out}: {count:,} sessions")
