"""`agentsched emulate`: engines without GPUs, behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentsched import UsageError
from cli import console


def emulate(
    model: Annotated[str, typer.Option(help="The model; `agentsched list models`.")] = "qwen3-8b",
    topology: Annotated[
        str, typer.Option(help="Replicas and GPUs; `agentsched list topologies`.")
    ] = "4x1xh100",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the first replica; the others follow.")
    ] = 8000,
    speed: Annotated[float, typer.Option(help="Emulated seconds per real second.")] = 1.0,
    script: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Answers by turn, instead of made-up words."),
    ] = None,
    output_tokens: Annotated[
        int, typer.Option(min=1, help="Length of answers that no request forces.")
    ] = 64,
    kv_blocks: Annotated[
        int | None, typer.Option(min=2, help="KV blocks of each replica, instead of what fits.")
    ] = None,
    kv_events_port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Publish KV events: port of the first replica; others follow."
        ),
    ] = None,
    allow_anyone: Annotated[
        bool, typer.Option("--allow-anyone", help="Listen on an address that others can reach.")
    ] = False,
    misbehave: Annotated[
        bool,
        typer.Option("--misbehave", help="Go wrong when told to, at /misbehave."),
    ] = False,
) -> None:
    """Serve emulated vLLM replicas, one port each, until Ctrl-C.

    Prefill and decode replicas of a topology hand KV over, as vLLM's do with NIXL.
    """
    from dataclasses import replace

    from harness.capacity import resolve_cluster
    from harness.live.access import Access, check_exposure
    from harness.live.daemon import emulate as run
    from harness.live.emulated_answers import read_script
    from harness.live.emulator import EmulatorSettings
    from harness.live.fleet_server import link_of, specs_of
    from harness.sim.engine_types import EngineParams

    check_exposure(host, Access(anyone=allow_anyone), "the emulator")
    if not 0 < speed <= 1000:
        raise UsageError(f"--speed {speed:g}: not between 0 and 1000", "1 is real time")
    cluster = resolve_cluster(model, topology)
    specs = specs_of(cluster, EngineParams(block_size=cluster.replicas[0].block_size))
    if kv_blocks is not None:
        specs = [replace(spec, kv_blocks=kv_blocks) for spec in specs]
    run(
        specs,
        EmulatorSettings(
            model=model,
            max_model_len=min(replica.context_limit for replica in cluster.replicas),
            default_output=output_tokens,
        ),
        host=host,
        port=port,
        speed=speed,
        script=read_script(script) if script is not None else None,
        link=link_of(cluster),
        kv_port=kv_events_port,
        misbehave=misbehave,
        tell=console.notes().print,
    )
