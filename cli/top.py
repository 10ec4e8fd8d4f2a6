"""`agentsched top`: what a gateway is doing, as a live table."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import console
from cli.login_options import Authorities, ClientToken, ClientTokenFile, login

if TYPE_CHECKING:
    from rich.console import RenderableType


def top(
    url: Annotated[str, typer.Argument(metavar="URL", help="The gateway's admin address.")],
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once and stop.")] = False,
    token_file: ClientTokenFile = None,
    token: ClientToken = None,
    cacert: Authorities = None,
) -> None:
    """Show replicas, sessions and rates of a running gateway until Ctrl-C."""
    from harness.live.watching import fetch_state, rates

    bring = login(token_file, token, cacert)
    before = fetch_state(url, bring)
    if once or not sys.stdout.isatty():
        console.output().print(_view(before, rates(before, before)))
        return
    from rich.live import Live

    try:
        with Live(_view(before, rates(before, before)), console=console.output()) as live:
            while True:
                time.sleep(interval)
                now = fetch_state(url, bring)
                live.update(_view(now, rates(before, now)))
                before = now
    except KeyboardInterrupt:
        return


def _view(state: dict[str, Any], rate: dict[str, float]) -> RenderableType:
    from rich.table import Table

    title = (
        f"{state['scheduler']}: {state['sessions']} sessions, {state['paused']} paused, "
        f"{state['in_flight']} in flight, {state['waiting']} waiting"
    )
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    heads = ("replica", "run", "wait", "KV", "hits", "sessions", "in flight", "tokens/s", "sample")
    for head in heads:
        table.add_column(head, justify="left" if head == "replica" else "right")
    for replica in state["replicas"]:
        role = "" if replica.get("role", "mixed") == "mixed" else f" {replica['role']}"
        name = f"{replica['id']}{role}{'' if replica['healthy'] else ' (down)'}"
        queries, hits = replica["prefix_queries"], replica["prefix_hits"]
        share = None if not queries or hits is None else hits / queries
        age = replica["sample_age_s"]
        table.add_row(
            name,
            _count(replica["running"]),
            _count(replica["waiting"]),
            _percent(replica["kv_usage"]),
            _percent(share),
            _count(replica["sessions"]),
            _count(replica["in_flight"]),
            f"{rate.get(replica['id'], 0.0):.0f}",
            "-" if age is None else f"{age:.0f} s ago",
        )
    return table


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
