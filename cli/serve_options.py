"""Options that `serve` and `record` have in common."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentsched import UsageError

if TYPE_CHECKING:
    from harness.live.serving import ServeSettings

Backends = Annotated[
    list[str], typer.Option("--backend", metavar="URL", help="An engine's address; repeatable.")
]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port of the model API.")]
AdminPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Hints, releases, metrics; the next port."),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the scheduler; repeatable."),
]
Share = Annotated[
    float, typer.Option(min=0.01, max=1.0, help="Part of the engines' KV this gateway may use.")
]
IdleExpiry = Annotated[
    float, typer.Option(metavar="SECONDS", help="Close sessions that were idle this long.")
]
Poll = Annotated[float, typer.Option(metavar="SECONDS", help="Between looks at engine metrics.")]
Wait = Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for the engines.")]
AllowUrls = Annotated[
    bool, typer.Option("--allow-urls", help="Let requests name URLs and files to fetch.")
]
EventLog = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Log every event and what it led to.")
]
KvEvents = Annotated[
    list[str] | None,
    typer.Option(
        "--kv-events", metavar="tcp://HOST:PORT", help="An engine's KV events, in their order."
    ),
]


def kv_endpoints(backends: list[str], endpoints: list[str] | None) -> dict[str, str]:
    """KV-event addresses by replica id."""
    given = endpoints or []
    if given and len(given) != len(backends):
        raise UsageError(
            f"{len(given)} --kv-events for {len(backends)} --backend", "give one for each, or none"
        )
    return {f"r{index}": endpoint for index, endpoint in enumerate(given)}


def scheduler_settings(assignments: list[str] | None) -> dict[str, Any]:
    """The settings in `name=value` texts; values are YAML."""
    from harness.specfile import parse_value

    found: dict[str, Any] = {}
    for text in assignments or []:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(
                f"--set {text}: not of the form NAME=VALUE", "as in --set interval_s=2"
            )
        found[name.strip()] = parse_value(value, f"--set {text}")
    return found


def serve_settings(
    *,
    host: str,
    port: int,
    admin_port: int | None,
    share: float,
    idle_expiry: float,
    poll: float,
    wait: float,
    allow_urls: bool,
) -> ServeSettings:
    """Options as the gateway's settings."""
    from harness.live.gateway import GatewaySettings
    from harness.live.polling import PollSettings
    from harness.live.serving import ServeSettings
    from harness.live.turns import DriverSettings

    for name, value in (("--idle-expiry", idle_expiry), ("--poll", poll)):
        if not value > 0:
            raise UsageError(f"{name} {value:g}: must be above 0", "give a number of seconds")
    return ServeSettings(
        host=host,
        port=port,
        admin_port=admin_port,
        capacity_share=share,
        wait_s=wait,
        driver=DriverSettings(idle_expiry_s=idle_expiry),
        gateway=GatewaySettings(allow_urls=allow_urls),
        poll=PollSettings(interval_s=poll),
    )
