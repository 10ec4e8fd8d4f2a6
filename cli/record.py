"""`agentsched record`: a gateway that writes down what passes as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli import console
from cli.serve_options import (
    AdminHost,
    AdminPort,
    AdminTokenFile,
    AllowAnyone,
    AllowUrls,
    Assignments,
    BackendCacert,
    BackendKeyFile,
    Backends,
    BootstrapPorts,
    Cert,
    Decodes,
    Gather,
    Host,
    IdleExpiry,
    Key,
    KvEvents,
    MaxBody,
    MaxWait,
    Poll,
    Port,
    Prefills,
    QueueLength,
    Security,
    SessionsPerKey,
    Share,
    TextMemory,
    Token,
    TokenFile,
    TurnIdle,
    TurnTotal,
    Wait,
    replica_addresses,
    scheduler_settings,
    serve_settings,
)


def record(
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="TRACE.jsonl[.gz]", help="The trace to write.")
    ],
    backend: Backends = None,
    prefill: Prefills = None,
    decode: Decodes = None,
    scheduler: Annotated[
        str, typer.Option(metavar="NAME|FILE.py:CLASS", help="Who decides meanwhile.")
    ] = "round-robin",
    assignments: Assignments = None,
    workload: Annotated[str, typer.Option(help="Names the workload in the trace.")] = "recorded",
    record_content: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also keep the text of prompts and answers here."),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8300,
    admin_port: AdminPort = None,
    capacity_share: Share = 1.0,
    idle_expiry: IdleExpiry = 600.0,
    poll: Poll = 5.0,
    wait: Wait = 600.0,
    turn_idle: TurnIdle = 600.0,
    turn_total: TurnTotal = 0.0,
    max_wait: MaxWait = 900.0,
    text_memory: TextMemory = 256,
    gather: Gather = True,
    token_file: TokenFile = None,
    token: Token = None,
    allow_anyone: AllowAnyone = False,
    admin_host: AdminHost = "127.0.0.1",
    admin_token_file: AdminTokenFile = None,
    cert: Cert = None,
    key: Key = None,
    backend_key_file: BackendKeyFile = None,
    backend_cacert: BackendCacert = None,
    sessions_per_key: SessionsPerKey = None,
    queue_length: QueueLength = None,
    max_body: MaxBody = 64,
    allow_urls: AllowUrls = False,
    kv_events: KvEvents = None,
    bootstrap_port: BootstrapPorts = None,
) -> None:
    """Serve, and record tokens, timing and tools of all sessions as a native trace.

    Text is kept only with --record-content. Stops on Ctrl-C.
    """
    from harness.live.daemon import serve
    from harness.live.serving import find_policy

    serve(
        find_policy(scheduler, scheduler_settings(assignments)),
        replica_addresses(backend, prefill, decode, kv_events, bootstrap_port),
        serve_settings(
            host=host,
            port=port,
            admin_port=admin_port,
            share=capacity_share,
            idle_expiry=idle_expiry,
            poll=poll,
            wait=wait,
            allow_urls=allow_urls,
            turn_idle=turn_idle,
            turn_total=turn_total,
            max_wait=max_wait,
            text_memory=text_memory,
            gather=gather,
            security=Security(
                token_file,
                token,
                allow_anyone,
                admin_host,
                admin_token_file,
                cert,
                key,
                backend_key_file,
                sessions_per_key,
                queue_length,
                max_body,
                backend_cacert,
            ),
        ),
        tell=console.notes().print,
        trace=out,
        content=record_content,
        workload=workload,
    )
