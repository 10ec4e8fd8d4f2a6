"""`agentsched replay`: drive an endpoint with a trace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentsched import InvalidRunError, UsageError
from cli import console
from cli.login_options import Authorities, ClientToken, ClientTokenFile, login

if TYPE_CHECKING:
    from harness.live.replay_run import ReplaySummary


def replay(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD|TRACE", help="What to play.")],
    url: Annotated[str, typer.Option(metavar="URL", help="The endpoint, without /v1.")],
    workers: Annotated[int, typer.Option(min=1, help="Sessions active at once.")] = 16,
    model: Annotated[str, typer.Option(help="The model name to ask for.")] = "emulated",
    sessions: Annotated[int | None, typer.Option(min=1, help="How many sessions to play.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of generated workloads and sampled gaps.")] = 0,
    gaps: Annotated[
        str, typer.Option(metavar="recorded|sampled|none", help="Where tool times come from.")
    ] = "recorded",
    gap_scale: Annotated[float, typer.Option(help="Factor on tool times and waits.")] = 1.0,
    spread: Annotated[
        float, typer.Option(metavar="SECONDS", help="Start the workers over this time.")
    ] = 0.0,
    admin_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The gateway's admin port, for releases.")
    ] = None,
    session_header: Annotated[
        str, typer.Option(help="The header that names the session.")
    ] = "x-session-id",
    salt: Annotated[
        str | None,
        typer.Option(help="Names the texts; a run shares prefixes only with runs of its salt."),
    ] = None,
    arm: Annotated[str, typer.Option(help="What this run is called in the run folder.")] = "replay",
    label: Annotated[
        str, typer.Option(metavar="measured|emulated|external", help="Kind of the figures.")
    ] = "measured",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Run folder; nothing is kept without.")
    ] = None,
    token_file: ClientTokenFile = None,
    token: ClientToken = None,
    admin_token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="As --token-file, for the admin port."),
    ] = None,
    cacert: Authorities = None,
) -> None:
    """Play sessions against an endpoint, closed loop, with exact token counts.

    Ends with 3 if the client itself was the bottleneck.
    """
    from harness.live.replay import ReplaySettings
    from harness.live.replay_run import replay as run
    from harness.live.replay_store import stored, unstored
    from workloads.catalog import load_workload

    if gaps not in ("recorded", "sampled", "none"):
        raise UsageError(f"--gaps {gaps}: not known", "one of: recorded, sampled, none")
    if label not in ("measured", "emulated", "external"):
        raise UsageError(f"--label {label}: not known", "one of: measured, emulated, external")
    if gap_scale < 0 or spread < 0:
        raise UsageError("--gap-scale and --spread must not be negative", "give 0 or more")
    played = load_workload(workload, sessions=sessions, seed=seed)
    used_salt = salt if salt is not None else os.urandom(4).hex()
    settings = ReplaySettings(
        model=model,
        gaps=gaps,  # type: ignore[arg-type]
        gap_scale=gap_scale,
        start_spread_s=spread,
        session_header=session_header,
        salt=used_salt,
        seed=seed,
    )
    notes = console.notes()
    turns = sum(len(s.turns) for s in played)
    notes.print(
        f"{len(played)} sessions, {turns} turns, {workers} workers against {url}, salt {used_salt}"
    )
    keep = unstored() if out is None else stored(out, workload, arm, workers, seed, label, settings)
    with keep as kept:
        summary = run(
            url,
            played,
            workers=workers,
            settings=settings,
            recorder=kept.recorder,
            admin_url=admin_url,
            tell=notes.print,
            login=login(token_file, token, cacert),
            admin_login=login(admin_token_file, None, cacert),
        )
        if not summary.interrupted:
            kept.finish(summary)
    _show(summary)
    if summary.interrupted:
        raise KeyboardInterrupt
    if summary.problems:
        raise InvalidRunError("; ".join(summary.problems), "use a faster or less busy client host")


def _show(summary: ReplaySummary) -> None:
    rows: list[tuple[str, Any]] = [
        ("sessions ended", summary.sessions),
        ("turns ended", summary.turns),
        ("makespan", f"{summary.makespan_ns / 1e9:.2f} s"),
        ("output tokens", summary.output_tokens),
        ("TTFT mean / p99", f"{summary.ttft_mean_ms:.1f} / {summary.ttft_p99_ms:.1f} ms"),
        ("in flight, most", summary.peak_in_flight),
        ("client: loop lag p50 / p99 / max", _lags(summary)),
        ("client: dispatch lag p99", f"{summary.dispatch_lag_p99_ms:.1f} ms"),
        ("client: CPU, memory", f"{summary.cpu_s:.2f} s, {summary.rss_mb:.0f} MB"),
    ]
    console.print_columns(["replay", ""], [(name, str(value)) for name, value in rows])


def _lags(summary: ReplaySummary) -> str:
    lags = (summary.loop_lag_p50_ms, summary.loop_lag_p99_ms, summary.loop_lag_max_ms)
    return " / ".join(f"{lag:.1f}" for lag in lags) + " ms"
