"""Options that `serve` and `record` have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentsched import UsageError

if TYPE_CHECKING:
    from harness.live.access import Access, TlsFiles
    from harness.live.parts import ReplicaAddress
    from harness.live.serving import ServeSettings

Backends = Annotated[
    list[str] | None,
    typer.Option("--backend", metavar="URL", help="An engine's address; repeatable."),
]
Prefills = Annotated[
    list[str] | None,
    typer.Option("--prefill", metavar="URL", help="An engine that prefills alone; repeatable."),
]
Decodes = Annotated[
    list[str] | None,
    typer.Option("--decode", metavar="URL", help="An engine that gets KV from those; repeatable."),
]
BootstrapPorts = Annotated[
    list[int] | None,
    typer.Option(
        "--bootstrap-port",
        min=1,
        max=65535,
        help="Of SGLang prefill engines, in their order; asked of them if left out.",
    ),
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
TokenFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Ask callers for one of these tokens, one a line."),
]
Token = Annotated[
    str | None,
    typer.Option(
        metavar="TOKEN",
        envvar="AGENTSCHED_TOKEN",
        help="The same for one token; better given in the environment than here.",
        show_envvar=True,
    ),
]
AllowAnyone = Annotated[
    bool, typer.Option("--allow-anyone", help="No token, though others can reach the address.")
]
AdminHost = Annotated[str, typer.Option(help="Address of the admin port.")]
AdminTokenFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Tokens of the admin port, one a line.")
]
Cert = Annotated[
    Path | None, typer.Option(metavar="FILE.pem", help="Serve TLS with this certificate chain.")
]
Key = Annotated[Path | None, typer.Option(metavar="FILE.pem", help="The certificate's key.")]
BackendKeyFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The engines' own API key.")
]
BackendCacert = Annotated[
    Path | None,
    typer.Option(metavar="FILE.pem", help="Certificates to trust, for engines behind https."),
]
SessionsPerKey = Annotated[
    int | None, typer.Option(min=1, help="Sessions that one token may have open.")
]
QueueLength = Annotated[
    int | None, typer.Option(min=1, help="Turns that may wait; more are refused with 429.")
]
Gather = Annotated[
    bool,
    typer.Option(
        help="Relay the chunks of many streams together, 1.5 ms later (at most 4), for less CPU; "
        "on Linux."
    ),
]
MaxBody = Annotated[int, typer.Option(min=1, metavar="MIB", help="Longest body of a request.")]
TurnIdle = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="An engine silent for this long is given up; 0: never."),
]
MaxWait = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", help="A turn held this long is sent on all the same; 0: never."
    ),
]
TurnTotal = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="A turn may take this long, waiting included; 0: no end."),
]
TextMemory = Annotated[
    int, typer.Option(min=1, metavar="MIB", help="Text kept to find prompts that begin alike.")
]
AllowUrls = Annotated[
    bool, typer.Option("--allow-urls", help="Let requests name URLs and files to fetch.")
]
EventLog = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Log every event and what it led to.")
]
KvEvents = Annotated[
    list[str] | None,
    typer.Option(
        "--kv-events",
        metavar="tcp://HOST:PORT[,tcp://HOST:PORT]",
        help="An engine's KV events, in their order; after a comma its replay socket.",
    ),
]


@dataclass(frozen=True, slots=True)
class Security:
    """The options about who may come in, and how much of it."""

    token_file: Path | None = None
    token: str | None = None
    allow_anyone: bool = False
    admin_host: str = "127.0.0.1"
    admin_token_file: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    backend_key_file: Path | None = None
    sessions_per_key: int | None = None
    queue_length: int | None = None
    max_body: int = 64
    backend_cacert: Path | None = None

    def access(self) -> Access:
        """Who may use the model port.

        Raises:
            UsageError: a limit per token without tokens, or a token that is none.
        """
        from harness.live.access import Access

        tokens = self.tokens_of(self.token_file)
        if self.token is not None:
            tokens += (self.token,)
        if self.sessions_per_key is not None and not tokens:
            raise UsageError("--sessions-per-key without tokens", "give --token-file FILE")
        return Access(tokens, self.allow_anyone)

    @staticmethod
    def tokens_of(path: Path | None) -> tuple[str, ...]:
        from harness.live.access import read_tokens

        return read_tokens(path) if path is not None else ()

    def tls(self) -> TlsFiles | None:
        from harness.live.access import TlsFiles

        if self.cert is None and self.key is not None:
            raise UsageError("--key without --cert", "give --cert FILE.pem")
        return TlsFiles(self.cert, self.key) if self.cert is not None else None


def replica_addresses(
    backends: list[str] | None,
    prefills: list[str] | None,
    decodes: list[str] | None,
    kv_events: list[str] | None,
    bootstrap_ports: list[int] | None,
) -> list[ReplicaAddress]:
    """The engines to serve, named r0, r1, ...: --backend first, then --prefill, then --decode.

    Raises:
        UsageError: nothing can decode, or a list is not as long as the one it belongs to.
    """
    from harness.live.parts import ReplicaAddress, Role

    given: list[tuple[str, Role]] = [(url, "mixed") for url in backends or ()]
    given += [(url, "prefill") for url in prefills or ()]
    given += [(url, "decode") for url in decodes or ()]
    if not any(role != "prefill" for _, role in given):
        raise UsageError("no engine to serve", "give --backend URL, or --prefill and --decode")
    endpoints = kv_events or []
    if endpoints and len(endpoints) != len(given):
        raise UsageError(
            f"{len(endpoints)} --kv-events for {len(given)} engines", "give one for each, or none"
        )
    ports = bootstrap_ports or []
    first = len(backends or ())
    if ports and len(ports) != len(prefills or ()):
        raise UsageError(
            f"{len(ports)} --bootstrap-port for {len(prefills or ())} --prefill",
            "give one for each, or none",
        )
    return [
        ReplicaAddress(
            f"r{index}",
            url,
            role,
            kv_events=endpoints[index].partition(",")[0] if endpoints else None,
            kv_replay=(endpoints[index].partition(",")[2] or None) if endpoints else None,
            bootstrap_port=ports[index - first] if ports and role == "prefill" else None,
        )
        for index, (url, role) in enumerate(given)
    ]


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
    turn_idle: float = 600.0,
    turn_total: float = 0.0,
    max_wait: float = 0.0,
    text_memory: int = 256,
    gather: bool = True,
    security: Security | None = None,
) -> ServeSettings:
    """Options as the gateway's settings."""
    from harness.live.access import Access
    from harness.live.gateway import GatewaySettings
    from harness.live.http_server import Limits
    from harness.live.login import Login
    from harness.live.polling import PollSettings
    from harness.live.serving import ServeSettings
    from harness.live.turns import DriverSettings

    for name, value in (("--idle-expiry", idle_expiry), ("--poll", poll)):
        if not value > 0:
            raise UsageError(f"{name} {value:g}: must be above 0", "give a number of seconds")
    for name, value in (
        ("--turn-idle", turn_idle),
        ("--turn-total", turn_total),
        ("--max-wait", max_wait),
    ):
        if not value >= 0:
            raise UsageError(f"{name} {value:g}: must not be negative", "0 means no limit")
    given = security or Security()
    return ServeSettings(
        access=given.access(),
        admin_host=given.admin_host,
        admin_access=Access(given.tokens_of(given.admin_token_file)),
        tls=given.tls(),
        backend=Login(
            next(iter(given.tokens_of(given.backend_key_file)), None), given.backend_cacert
        ),
        max_wait_s=max_wait or None,
        gather=gather,
        limits=Limits(body_bytes=given.max_body << 20),
        host=host,
        port=port,
        admin_port=admin_port,
        capacity_share=share,
        wait_s=wait,
        driver=DriverSettings(
            idle_expiry_s=idle_expiry,
            turn_idle_s=turn_idle or None,
            turn_total_s=turn_total or None,
        ),
        gateway=GatewaySettings(
            allow_urls=allow_urls,
            text_bytes=text_memory << 20,
            sessions_per_key=given.sessions_per_key,
            queue_length=given.queue_length,
        ),
        poll=PollSettings(interval_s=poll),
    )
