"""Which performance table and which scalars serve a model on a GPU kind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from agentsched import PerformanceDataError
from harness.fields import Fields
from harness.gpus import GpuKind
from harness.models import Model
from harness.sim.layer_tables import read_layer_table
from harness.sim.perf_tables import perf_folder, read_operator_table
from harness.sim.step_costs import LayerCosts, Link, OperatorCosts, StepCosts
from harness.specfile import parse_document

BACKENDS = ("vllm", "sglang")
_ANY = "any"


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One shipped table."""

    model: str
    gpu: str
    tensor_parallel: int
    backend: str
    kind: str
    """`operator` or `layer`."""
    file: str
    source: str
    caveat: str = ""


@dataclass(frozen=True, slots=True)
class Profile:
    """Scalars of an engine on a GPU kind, beside its table."""

    backend: str
    gpu: str
    host_fixed_us: float
    host_prefill_us: float
    host_per_seq_us: float
    bandwidth_scale: float
    origin: str


@dataclass(frozen=True, slots=True)
class ApiServerCosts:
    """Time outside the engine, microseconds."""

    request_us: float
    """Service of one queue, per request."""
    prompt_token_us: float
    """The same, per prompt token."""
    delay_us: float
    """Passes without occupying anyone."""


@cache
def table_entries() -> tuple[TableEntry, ...]:
    """All shipped tables.

    Raises:
        SpecError: the index of the package is damaged.
    """
    document = parse_document((perf_folder() / "index.yaml").read_text("utf-8"), "perf/index.yaml")
    fields = Fields(document)
    entries = []
    for group in fields.groups("tables"):
        entries.append(
            TableEntry(
                model=group.text("model"),
                gpu=group.text("gpu"),
                tensor_parallel=group.whole("tensor_parallel"),
                backend=group.choice("backend", BACKENDS),
                kind=group.choice("kind", ("operator", "layer")),
                file=group.text("file"),
                source=group.text("source"),
                caveat=group.text("caveat", "none").removesuffix("none"),
            )
        )
        group.done()
    fields.done()
    return tuple(entries)


@cache
def _profiles() -> tuple[tuple[Profile, ...], ApiServerCosts]:
    name = "perf/profiles.yaml"
    document = parse_document((perf_folder() / "profiles.yaml").read_text("utf-8"), name)
    fields = Fields(document)
    found = []
    for group in fields.groups("profiles"):
        found.append(
            Profile(
                backend=group.choice("backend", BACKENDS),
                gpu=group.text("gpu"),
                host_fixed_us=group.number("host_fixed_us", above=-1.0),
                host_prefill_us=group.number("host_prefill_us", above=-1.0),
                host_per_seq_us=group.number("host_per_seq_us", above=-1.0),
                bandwidth_scale=group.number("bandwidth_scale"),
                origin=group.text("origin"),
            )
        )
        group.done()
    server = fields.group("api_server")
    costs = ApiServerCosts(
        request_us=server.number("request_us", above=-1.0),
        prompt_token_us=server.number("prompt_token_us", above=-1.0),
        delay_us=server.number("delay_us", above=-1.0),
    )
    server.done()
    fields.done()
    return tuple(found), costs


def api_server_costs() -> ApiServerCosts:
    """Default costs of the API server; sources in perf/profiles.yaml."""
    return _profiles()[1]


def find_profile(gpu: str, backend: str) -> Profile:
    """The scalars fitted for this engine on this GPU kind, or those carried over to it.

    Raises:
        PerformanceDataError: no such back end.
    """
    profiles = _profiles()[0]
    for wanted in (gpu, _ANY):
        for profile in profiles:
            if profile.backend == backend and profile.gpu == wanted:
                return profile
    raise PerformanceDataError(
        f"no step times for the back end `{backend}`", f"known: {', '.join(BACKENDS)}"
    )


def find_table(model: str, gpu: str, tensor_parallel: int, backend: str) -> TableEntry | None:
    """The table of this model, GPU kind and split: of this back end, or else of the other one."""
    alike = [
        entry
        for entry in table_entries()
        if (entry.model, entry.gpu, entry.tensor_parallel) == (model, gpu, tensor_parallel)
    ]
    exact = [entry for entry in alike if entry.backend == backend]
    return next(iter(exact or alike), None)


@cache
def table_costs(entry: TableEntry, model: Model, gpu: GpuKind, expert_ranks: int = 1) -> StepCosts:
    """The costs in a table, read once.

    Raises:
        PerformanceDataError: a file is damaged; names file and line.
    """
    if entry.kind == "operator":
        if expert_ranks > 1:
            raise PerformanceDataError(
                f"the table {entry.file} has no expert parallelism", "use a layer table"
            )
        return OperatorCosts(read_operator_table(perf_folder() / f"{entry.file}.csv"))
    table = read_layer_table(entry.file, moe=model.experts is not None)
    return LayerCosts(
        table,
        model,
        ranks=entry.tensor_parallel,
        link=Link(gpu.peer_gbs, gpu.link_latency_us, nvlink=gpu.nvlink_gbs > 0),
        expert_ranks=expert_ranks,
    )
