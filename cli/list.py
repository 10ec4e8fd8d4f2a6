"""`agentsched list`: what can be named on the command line and in specifications."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from cli.console import print_columns, width

WIDE = 110
"""Columns from which six of a table stand side by side in lines of a readable length."""


class Kind(StrEnum):
    SCHEDULERS = "schedulers"
    WORKLOADS = "workloads"
    MODELS = "models"
    TOPOLOGIES = "topologies"
    PRESETS = "presets"


def list_names(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    name: Annotated[
        str | None, typer.Argument(help="One of them, in detail.", show_default=False)
    ] = None,
) -> None:
    """Show what there is: schedulers, workloads, models, topologies or presets."""
    show_all, show_one = _SHOW[kind]
    if name is None:
        show_all()
    else:
        show_one(name)


def _schedulers() -> None:
    from schedulers import registry

    rows = []
    for name in registry.names():
        info = registry.find(name).info
        holds = "yes" if info.holds else "no"
        rows.append((name, info.family, info.observes, holds, info.fidelity, info.reference))
    if width() >= WIDE:
        print_columns(("scheduler", "family", "observes", "holds", "fidelity", "reference"), rows)
        return
    print_columns(
        ("scheduler", "family; what it observes; fidelity: reference"),
        [
            (
                name,
                f"{family}{', holds turns' if holds == 'yes' else ''}; observes {observes}; "
                f"{fidelity}: {reference}",
            )
            for name, family, observes, holds, fidelity, reference in rows
        ],
    )


def _scheduler(name: str) -> None:
    from harness.describe import settings_of
    from schedulers import registry

    cls = registry.find(name)
    info = cls.info
    print(f"{cls.name}: {info.family}; observes {info.observes}")
    print(f"holds turns: {'yes' if info.holds else 'no'}; fidelity: {info.fidelity}")
    print(f"reference: {info.reference}")
    settings = settings_of(cls.Config)
    if not settings:
        print("no settings")
        return
    print(f"settings, for --set scheduler_settings.{cls.name}.NAME=VALUE:")
    print_columns(("setting", "default", "what it is"), settings)


def _workloads() -> None:
    from workloads.agents.registry import agent_workloads, find_driver
    from workloads.catalog import describe, workload_names

    rows: list[tuple[str, str, str, str]] = []
    for name in workload_names():
        info = describe(name)
        rows.append((name, info.origin, f"{info.sessions:,}", info.note))
    rows += [(name, "real agents", "", find_driver(name).about) for name in agent_workloads()]
    print_columns(("workload", "origin", "sessions", "what it is"), rows)


def _workload(name: str) -> None:
    from workloads.agents.registry import agent_workloads, find_driver
    from workloads.catalog import describe

    if name in agent_workloads():
        from workloads.in_place import profile_of

        profile, _ = profile_of(name, {})
        print(f"{name}: real agents on live engines (emulator, vllm, sglang)")
        print(f"{find_driver(name).about}\nsettings: docs/agents.md, docs/terminal-bench.md")
        print(f"simulated or replayed, the generated profile {profile} stands in its place")
        return
    info = describe(name)
    print(f"{info.name}: {info.origin}, {info.sessions:,} sessions unless told otherwise")
    print(f"source: {info.source}\nlicence: {info.licence}\n{info.note}")


def _models() -> None:
    from harness.models import models

    rows = [
        (
            model.name,
            f"{model.params_b:g} B" if model.params_b >= 0.1 else f"{model.params_b * 1e3:.3g} M",
            f"{model.weights_gib:g} GiB",
            f"{model.kv.bytes_per_token / 1024:,.1f} KiB",
            f"{model.context_limit:,}",
        )
        for model in models().values()
    ]
    print_columns(("model", "parameters", "weights", "KV a token", "context limit"), rows)


def _model(name: str) -> None:
    from dataclasses import fields

    from harness.models import find_model

    model = find_model(name)
    print_columns(
        ("field", "value"),
        [(field.name, str(getattr(model, field.name))) for field in fields(model)],
    )


def _topologies() -> None:
    from harness.topology import find_topology, topology_names

    rows = [(name, find_topology(name).description) for name in topology_names()]
    print_columns(("topology", "what it is"), rows)


def _topology(name: str) -> None:
    from harness.topology import find_topology

    topology = find_topology(name)
    print(f"{topology.name}: {topology.description}")
    rows = [
        (
            f"r{index}",
            replica.role,
            f"{replica.tensor_parallel} x {replica.node.gpu.name}",
            replica.node.name,
            f"{replica.gpu_memory_utilization:g}",
            f"{replica.power_cap_w:g} W",
        )
        for index, replica in enumerate(topology.replicas)
    ]
    chips = "CPUs" if all(node.gpu.name == "cpu" for node in topology.nodes) else "GPUs"
    print_columns(("replica", "role", chips, "node", "memory share", "power cap"), rows)


def _presets() -> None:
    from harness.spec import load_spec, preset_names

    rows = [(name, load_spec(name).description) for name in preset_names()]
    print_columns(("preset", "what it runs"), rows)


def _preset(name: str) -> None:
    from harness.spec import load_spec

    print(load_spec(name).text, end="")


_SHOW = {
    Kind.SCHEDULERS: (_schedulers, _scheduler),
    Kind.WORKLOADS: (_workloads, _workload),
    Kind.MODELS: (_models, _model),
    Kind.TOPOLOGIES: (_topologies, _topology),
    Kind.PRESETS: (_presets, _preset),
}
