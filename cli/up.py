"""`agentsched up`, `down` and `status`: replicas on a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentsched import UsageError
from cli import console

Address = Annotated[
    str | None,
    typer.Option(
        metavar="ray://HOST:PORT",
        help="The cluster; the one on this machine, or that RAY_ADDRESS names, unless given.",
    ),
]


def up(
    topology: Annotated[str, typer.Argument(metavar="TOPOLOGY", help="A name or a .yaml file.")],
    model: Annotated[str, typer.Option(help="The model that is served.")] = "qwen3-8b",
    engine: Annotated[
        str, typer.Option(metavar="emulator|vllm|sglang", help="What serves it.")
    ] = "emulator",
    address: Address = None,
    speed: Annotated[
        float, typer.Option(help="Emulated seconds per real second (emulator only).")
    ] = 1.0,
    cpus: Annotated[
        float, typer.Option(min=0.01, help="CPUs that each replica takes of its machine.")
    ] = 1.0,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="launch.A=B", help="Settings of a real engine's start; repeatable."
        ),
    ] = None,
) -> None:
    """Start the replicas of a topology on a Ray cluster; they stay until `agentsched down`.

    They listen on their machines' addresses without a token, as Ray itself does: the cluster's
    network must be private.
    """
    from harness.capacity import resolve_cluster
    from harness.ray.deployment import Wanted, launch_settings
    from harness.ray.deployment import up as start
    from harness.ray.server import EMULATOR

    if not 0 < speed <= 1000:
        raise UsageError(f"--speed {speed:g}: not between 0 and 1000", "1 is real time")
    cluster = resolve_cluster(model, topology)
    launch = None
    if engine != EMULATOR:
        from harness.live.engines.kinds import find_engine

        find_engine(engine)
        launch = launch_settings(assignments or ())
    elif assignments:
        raise UsageError("--set launch.* is for real engines", "leave it out, or name --engine")
    found = start(Wanted(cluster, engine, {}, launch, speed, cpus), address)
    console.print_columns(
        ("replica", "role", "url"), [(one.name, one.role, one.url) for one in found]
    )
    urls = ",".join(one.url for one in found)
    print(f"use them: agentsched serve --replicas {urls}")
    print(
        f"or: agentsched run SPEC --engine vllm --topology {topology} --model {model} "
        f"--set 'live.urls=[{urls}]'"
    )


def down(address: Address = None) -> None:
    """Stop the replicas that `agentsched up` started, and give their GPUs back."""
    from harness.ray.deployment import down as stop

    print("stopped" if stop(address) else "nothing was up")


def status(
    address: Address = None,
    logs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Pull new lines of the replicas' logs into this folder."),
    ] = None,
) -> None:
    """Show the replicas that `agentsched up` started."""
    from harness.ray.deployment import status as look

    found = look(address, logs)
    if found is None:
        print("nothing is up; start replicas with `agentsched up TOPOLOGY`")
        return
    print(f"{found['model']} on {found['topology']}, engine {found['engine']}")
    console.print_columns(
        ("replica", "role", "GPUs", "state", "restarts", "url"),
        [
            (
                name,
                one["role"],
                str(one["gpus"]),
                one["state"],
                str(one["restarts"]),
                one["url"],
            )
            for name, one in found["replicas"].items()
        ],
    )
