"""Finds and checks everything that a specification names, before anything runs."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agentsched
from agentsched import TraceError, UsageError
from harness.capacity import Cluster, resolve_cluster
from harness.cells import Arrivals, CellJob
from harness.models import find_model
from harness.settings import settings_from
from harness.sim.defaults import engine_defaults
from harness.sim.engine_types import EngineParams
from harness.sim.faults import check_faults
from harness.sim.replicas import check_engine
from harness.sim.settings import SimSettings
from harness.sim.sglang_settings import refuse_settings_of_vllm
from harness.spec import RunSpec, WorkloadSpec
from harness.topology import find_topology
from results.cells import CellId
from results.records import Label
from schedulers import registry
from schedulers.base import Scheduler
from workloads.arrivals import recorded
from workloads.catalog import load_workload, workload_names
from workloads.stats import peak_context

if TYPE_CHECKING:
    from harness.live.cell import LiveJob
    from harness.live.settings import LiveSettings

LABELS: dict[str, Label] = {"sim": "simulated", "emulator": "emulated"}
"""By engine; all others are measured."""

LIBRARIES = ("numpy", "pandas", "pyarrow", "pydantic")
"""Their versions are kept with a run, since they take part in its figures."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One scheduler of the comparison."""

    name: str
    target: str
    """As the registry finds it: a name or file.py:Class."""
    settings: Mapping[str, Any]
    """As given."""
    config: Mapping[str, str]
    """All of them, defaults included, as text."""
    router: str | None = None
    """Another router's own program, as `vllm-router:cache_aware`, in place of a scheduler."""


@dataclass(frozen=True, slots=True)
class PlannedWorkload:
    """One workload, and what the first seed makes of it."""

    name: str
    """The shipped name, or the trace's file name without its ending."""
    source: str
    """As the catalogue finds it: a shipped name, or the path of a trace."""
    spec: WorkloadSpec
    origins: tuple[str, ...]
    """`recorded`, `generated`, or both."""
    sessions: int
    turns: int
    prompt_tokens: int
    output_tokens: int
    over_limit: int
    """Sessions, sub-agents included, that will pass the context limit and end there."""
    arrivals: Arrivals | None = None
    """How sessions arrive; None: workers take them up."""
    driver: str | None = None
    """Workload of workloads.agents whose real agents play it; None: it is replayed."""
    in_place_of: str | None = None
    """Agent workload that this generated one stands for, as no real agents run."""

    @property
    def loads(self) -> tuple[int, ...]:
        """Workers of its cells; 0 where sessions arrive by themselves."""
        return self.spec.workers if self.arrivals is None else (0,)


@dataclass(frozen=True, slots=True)
class Plan:
    """A specification with everything in it found and checked."""

    spec: RunSpec
    cluster: Cluster
    engine: EngineParams
    sim: SimSettings
    arms: tuple[Arm, ...]
    workloads: tuple[PlannedWorkload, ...]
    live: LiveSettings | None = None
    """On emulated or real engines; None: it is simulated."""
    launch: Any = None
    """Of started engines, harness.live.engines.settings.EngineSettings."""

    @property
    def on_ray(self) -> bool:
        """Whether its replicas are started on a Ray cluster."""
        return self.launch is not None and self.launch.on == "ray"

    @property
    def label(self) -> Label:
        """What the figures of its cells are; those of routers are `external` beside that."""
        return LABELS.get(self.spec.engine, "measured")

    @property
    def cells(self) -> list[CellId]:
        """Seed by seed, so that a run stopped early has compared all schedulers."""
        return [cell for cell, _, _ in self._matrix()]

    def jobs(self, folder: Path) -> list[CellJob]:
        """What to do for each cell, in the same order."""
        return [
            CellJob(
                cell=cell,
                run=folder,
                workload=workload.source,
                sessions=workload.spec.sessions,
                workload_settings=workload.spec.settings,
                arrivals=workload.arrivals,
                target=arm.target,
                settings=arm.settings,
                cluster=self.cluster,
                engine=self.engine,
                sim=self.sim,
                gateway_share=self.spec.gateway_share,
                facts=self.facts(),
                live=self._live_job(workload, arm),
            )
            for cell, workload, arm in self._matrix()
        ]

    def facts(self) -> dict[str, Any]:
        """Of the setting, for metrics and captions."""
        slo = self.spec.slo
        return {
            **({"slo": slo.model_dump(exclude_none=True)} if slo is not None else {}),
            "model": self.spec.model,
            "topology": self.spec.topology,
            "kv_capacity_tokens": {r.id: r.kv_tokens for r in self.cluster.replicas},
            "cache_source": "simulated blocks" if self.live is None else "engine usage",
        }

    def _live_job(self, workload: PlannedWorkload, arm: Arm) -> LiveJob | None:
        if self.live is None:
            return None
        from harness.live.cell import LiveJob

        return LiveJob(
            engine=self.spec.engine,
            settings=self.live,
            label=self.label if arm.router is None else "external",
            served_model=self.live.served_model or self.spec.model,
            driver=workload.driver,
            driver_settings=workload.spec.agents,
            router=arm.router,
            telemetry_interval_s=None
            if self.launch is None or self.on_ray  # this machine is not theirs
            else self.launch.telemetry_interval_s,
        )

    def commands(self) -> list[str]:
        """What would be started for each replica; empty where nothing is."""
        if self.launch is None or self.spec.engine == "emulator":
            return []
        from harness.live.engines.planned import planned_commands

        found = planned_commands(self.spec.engine, self.cluster, self.launch)
        return [command.line for command in found]

    def manifest(self, label: str) -> dict[str, Any]:
        """What the run folder keeps of how it came about. `spec` decides what may be resumed."""
        return {
            "label": label,
            "spec": {
                **self.spec.resolved(),
                "agentsched": agentsched.__version__,
                "code": code_digest(live=self.live is not None),
                "inputs": self._digests(),
            },
            "cells": [cell.as_dict() for cell in self.cells],
            "workloads": {w.name: _workload_facts(w) for w in self.workloads}
            | {name: facts for w in self.workloads for name, facts in _beside(w)},
            "paper": self.spec.paper,
            "replicas": [
                _replica_facts(self.cluster, i) for i in range(len(self.cluster.replicas))
            ],
            "engine": asdict(self.engine),
            "sim": asdict(self.sim),
            **({"live": asdict(self.live)} if self.live is not None else {}),
            **({"launch": asdict(self.launch)} if self.launch is not None else {}),
            "schedulers": {arm.name: dict(arm.config) for arm in self.arms},
            "versions": {
                "agentsched": agentsched.__version__,
                "python": platform.python_version(),
                **{name: version(name) for name in LIBRARIES},
            },
            "host": {"system": platform.system(), "machine": platform.machine()},
        }

    def warnings(self) -> list[str]:
        """What will make the result unusable, as far as can be told before."""
        return [
            f"{w.name}: {w.sessions} sessions cannot keep {workers} workers busy; "
            "the result will be marked invalid"
            for w in self.workloads
            for workers in w.spec.workers
            if workers > w.sessions
        ]

    def _matrix(self) -> Iterator[tuple[CellId, PlannedWorkload, Arm]]:
        for seed in self.spec.seeds:
            for workload in self.workloads:
                for workers in workload.loads:
                    for arm in self.arms:
                        yield CellId(workload.name, arm.name, workers, seed), workload, arm

    def _digests(self) -> dict[str, str]:
        """Of the user's files that results depend on."""
        files = {
            f"workload {workload.name}": workload.source
            for workload in self.workloads
            if workload.driver is None and workload.source not in workload_names()
        }
        files |= {
            f"scheduler {arm.name}": arm.target.rpartition(":")[0]
            for arm in self.arms
            if _is_file(arm.target)
        }
        return {
            what: hashlib.sha256(Path(file).read_bytes()).hexdigest()
            for what, file in files.items()
        }


def code_digest(*, live: bool = False) -> str:
    """Of the code and data of this installation that results depend on.

    Args:
        live: the run's cells are not simulated, so that the code of the gateway counts too.

    It is part of what a run is, so that figures of two states of the code never share a folder.
    """
    digest = hashlib.sha256()
    for package in ("harness", "schedulers", "workloads", "results"):
        root = Path(str(files(package)))
        for file in sorted(root.rglob("*")):
            name = file.relative_to(root.parent).as_posix()
            skipped = _NOT_IN_RESULTS if live else (*_NOT_IN_RESULTS, *_LIVE_ONLY)
            if file.is_file() and not any(part in name for part in skipped):
                digest.update(f"{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


_NOT_IN_RESULTS = (
    "__pycache__",
    "harness/data/presets/",
    # The map that `advise` looks at.
    "harness/data/regimes.csv",
    # Where cells run, and what only looks for settings of runs.
    "harness/ray/",
    "harness/planning/",
    "results/templates/",
    "results/reproduction/",
    # What only reads and shows finished cells.
    *(
        f"results/{name}.py"
        for name in (
            "compare",
            "compare_view",
            "drawing",
            "formatting",
            "groups",
            "plots",
            "published",
            "reference",
            "render",
            "report",
            "sections",
            "statistics",
            "tables",
            "timelines",
            "verdicts",
        )
    ),
)
_LIVE_ONLY = ("harness/live/", "harness/fleets.py", "workloads/agents/")


def plan(spec: RunSpec) -> Plan:
    """Find model, hardware, schedulers and workloads, and check every setting.

    Raises:
        UsageError: something is unknown, unreadable or impossible; names its place.
    """
    with spec.locating("model"):
        model = find_model(spec.model)
    with spec.locating("topology"):
        topology = find_topology(spec.topology)
        cluster = resolve_cluster(model, topology, **spec.memory.model_dump())
    sim = settings_from(spec, ("sim",), SimSettings, spec.sim)
    with spec.locating("sim", "faults"):
        check_faults(sim.faults, [replica.id for replica in cluster.replicas])
    engine = _engine(spec, cluster)
    with spec.locating("engine_settings"):
        check_engine(engine, cluster, sim)
    limit = sim.context_limit or model.context_limit
    live, launch = _live(spec, sim)
    arms = (*_arms(spec), *_routers(spec))
    found = Plan(spec, cluster, engine, sim, arms, _workloads(spec, limit), live, launch)
    if found.on_ray and spec.engine == "emulator" and any(w.driver for w in found.workloads):
        raise spec.error(
            ("launch", "on"),
            "emulated replicas on Ray cannot play a model's part for real agents",
            "leave it out, or replay the workload",
        )
    with spec.locating("launch"):
        found.commands()  # raises where engine and topology do not go together
    return found


def _live(spec: RunSpec, sim: SimSettings) -> tuple[LiveSettings | None, Any]:
    """Settings of live engines, and of starting real ones; None where there are none."""
    if spec.engine == "sim":
        return None, None
    from harness.live.settings import LiveSettings

    live = settings_from(spec, ("live",), LiveSettings, spec.live)
    if sim.gateways > 1:
        raise spec.error(
            ("sim", "gateways"),
            "several gateways are simulated only",
            "use `sim`, or leave it out",
        )
    if spec.engine == "emulator":
        if live.urls:
            raise spec.error(
                ("live", "urls"),
                "the emulator's replicas come with each cell, and `urls` names others",
                "use `engine: vllm` for replicas that run already, emulated or not",
            )
        return live, _emulated_on_ray(spec, live, sim)
    if live.time_scale != 1.0 or live.virtual_clock:
        raise spec.error(
            ("live",), "real engines run in real time", "leave out time_scale and virtual_clock"
        )
    if sim.faults or sim.fault_scenario is not None:
        raise spec.error(("sim",), "faults are not made on real engines", "use `sim` or `emulator`")
    if live.urls:
        return live, None
    from harness.live.engines.settings import EngineSettings

    return live, settings_from(spec, ("launch",), EngineSettings, spec.launch)


def _emulated_on_ray(spec: RunSpec, live: LiveSettings, sim: SimSettings) -> Any:
    """Settings of starting emulated replicas on a Ray cluster; None: each cell brings its own."""
    if spec.launch.get("on") != "ray":
        return None
    from harness.live.engines.settings import EngineSettings

    if live.virtual_clock:
        raise spec.error(("live",), "replicas on Ray run in real time", "leave out virtual_clock")
    if sim.faults or sim.fault_scenario is not None:
        raise spec.error(("sim",), "faults are not made on Ray", "leave out launch.on")
    return settings_from(spec, ("launch",), EngineSettings, spec.launch)


def _routers(spec: RunSpec) -> Iterator[Arm]:
    """Arms of other people's routers."""
    for index, name in enumerate(spec.routers):
        with spec.locating("routers", index):
            from harness.live.routers import check_router

            settings = spec.router_settings.get(name, {})
            arm, config = check_router(name, settings)
        yield Arm(arm, name, settings, config, router=name)


def _engine(spec: RunSpec, cluster: Cluster) -> EngineParams:
    for name in ("block_size", "max_model_len"):
        if name in spec.engine_settings:
            raise spec.error(
                ("engine_settings", name),
                f"`{name}` takes part in how much KV cache there is",
                f"set memory.{name} instead",
            )
    values = {**engine_defaults(cluster), **spec.engine_settings}
    with spec.locating("engine_settings"):
        if values.get("engine") == "sglang":
            refuse_settings_of_vllm(spec.engine_settings)
        return settings_from(spec, ("engine_settings",), EngineParams, values)


def _arms(spec: RunSpec) -> tuple[Arm, ...]:
    arms: list[Arm] = []
    for index, target in enumerate(spec.schedulers):
        with spec.locating("schedulers", index):
            cls = registry.find(target)
            if _is_file(target) and cls.name in registry.SHIPPED:
                raise UsageError(
                    f"your scheduler is called `{cls.name}`, which is the name of a shipped one",
                    "give yours another `name`, so that figures are not mistaken for its",
                )
            if any(arm.name == cls.name for arm in arms):
                raise UsageError(
                    f"two schedulers are called `{cls.name}`", "give yours another `name`"
                )
        settings = spec.scheduler_settings.get(cls.name, {})
        given = cls.name in spec.scheduler_settings
        place = ("scheduler_settings", cls.name) if given else ("schedulers", index)
        with spec.locating(*place):
            config = _configured(cls, settings)
        target = str(Path(target).resolve()) if _is_file(target) else target
        arms.append(Arm(cls.name, target, settings, config))
    known = [*(arm.name for arm in arms), *registry.names()]
    for name in spec.scheduler_settings:
        if name not in known:
            raise spec.error(
                ("scheduler_settings", name),
                f"settings for an unknown scheduler `{name}`",
                f"schedulers of this run: {', '.join(arm.name for arm in arms)}",
            )
        if name in registry.SHIPPED:  # a preset may hold settings for schedulers of other runs
            with spec.locating("scheduler_settings", name):
                registry.configure(registry.find(name), spec.scheduler_settings[name])
    return tuple(arms)


def _configured(cls: type[Scheduler], settings: Mapping[str, Any]) -> dict[str, str]:
    """Every setting the scheduler will run with; made once here, so that what fails fails early."""
    try:
        config = registry.configure(cls, settings)
        cls(config)
        return {key: str(value) for key, value in asdict(config).items()}
    except UsageError:
        raise
    except Exception as error:  # a user's class may raise anything when it is made
        raise UsageError(
            f"scheduler `{cls.name}` cannot be made: {type(error).__name__}: {error}",
            "compare it with the example in CONTRIBUTING.md",
        ) from error


def _is_file(target: str) -> bool:
    return ".py:" in target


def _workloads(spec: RunSpec, context_limit: int) -> tuple[PlannedWorkload, ...]:
    found: list[PlannedWorkload] = []
    for index, wanted in enumerate(spec.workloads):
        with spec.locating("workloads", index):
            workload = _workload(spec, wanted, context_limit)
            if any(workload.name == other.name for other in found):
                raise UsageError(
                    f"two workloads are called `{workload.name}`",
                    "rename one of the files, or run them one after another",
                )
        found += _at_rates(workload)
    return tuple(found)


def _at_rates(workload: PlannedWorkload) -> list[PlannedWorkload]:
    """One for each rate of arrival, named after it; the workload itself if it has workers."""
    if workload.spec.arrivals is None:
        return [workload]
    how = workload.spec.arrivals
    if not how.rate_per_s:
        arrivals = Arrivals(how.process, None, how.variation)
        return [replace(workload, name=f"{workload.name}-as-recorded", arrivals=arrivals)]
    bursty = f"-{how.process}" if how.process != "poisson" else ""
    return [
        replace(
            workload,
            name=f"{workload.name}-{rate:g}-per-s{bursty}",
            arrivals=Arrivals(how.process, rate, how.variation),
        )
        for rate in how.rate_per_s
    ]


def _agents_of(spec: RunSpec, wanted: WorkloadSpec) -> str | None:
    """The driver of real agents that is to play a workload."""
    if spec.engine == "sim" or wanted.play == "replay" or spec.live.get("virtual_clock"):
        return None
    from workloads.agents.registry import agent_workloads, find_driver

    name = wanted.agents_of or wanted.name
    if name not in agent_workloads():
        if wanted.play == "agents" or wanted.agents_of is not None:
            find_driver(name)  # raises
        return None
    return name


def _played_by_agents(spec: RunSpec, wanted: WorkloadSpec, name: str) -> PlannedWorkload:
    from workloads.agents.registry import find_driver

    driver = find_driver(name)
    driver.check(wanted.agents)
    if spec.live.get("time_scale", 1.0) != 1.0:
        raise UsageError("real agents run in real time", "leave out live.time_scale")
    if wanted.arrivals is not None:
        raise UsageError("real agents are taken up by workers", "give `workers`, not `arrivals`")
    tasks = driver.tasks(wanted.agents, sessions=wanted.sessions, seed=spec.seeds[0])
    return PlannedWorkload(
        name=name,
        source=name,
        spec=wanted,
        origins=("agents",),
        sessions=len(tasks),
        turns=0,
        prompt_tokens=0,
        output_tokens=0,
        over_limit=0,
        driver=name,
    )


def _workload(spec: RunSpec, wanted: WorkloadSpec, context_limit: int) -> PlannedWorkload:
    agents = _agents_of(spec, wanted)
    if agents is not None:
        return _played_by_agents(spec, wanted, agents)
    wanted, name = _generated(spec, wanted)
    source, in_place_of = name, wanted.name if name != wanted.name else None
    if name not in workload_names():
        path = spec.path_of(wanted)
        if path.exists():
            name = path.name.removesuffix(".gz").removesuffix(".jsonl")
            source = str(path.resolve())
    sessions = load_workload(
        source, sessions=wanted.sessions, seed=spec.seeds[0], settings=wanted.settings
    )
    if wanted.arrivals is not None and wanted.arrivals.process == "recorded":
        recorded(sessions)  # raises where the trace does not say
    if not sessions:
        raise TraceError("holds no session", "record or generate at least one", file=source)
    return PlannedWorkload(
        name=name,
        source=source,
        spec=wanted,
        origins=tuple(sorted({session.origin for session in sessions})),
        sessions=sum(session.parent is None for session in sessions),
        turns=sum(len(session.turns) for session in sessions),
        prompt_tokens=sum(turn.prompt_tokens for s in sessions for turn in s.turns),
        output_tokens=sum(turn.output_tokens for s in sessions for turn in s.turns),
        over_limit=sum(peak_context(session) > context_limit for session in sessions),
        in_place_of=in_place_of,
    )


def _generated(spec: RunSpec, wanted: WorkloadSpec) -> tuple[WorkloadSpec, str]:
    """Where no agents run, the generated profile in place of an agent workload, under its own
    name; anything else as it is."""
    from workloads.agents.registry import agent_workloads

    known = wanted.name in workload_names() or spec.path_of(wanted).exists()
    if known or wanted.name not in agent_workloads():
        return wanted, wanted.name
    from workloads.in_place import profile_of

    profile, settings = profile_of(wanted.name, wanted.agents)
    return wanted.model_copy(update={"settings": {**settings, **wanted.settings}}), profile


def _workload_facts(workload: PlannedWorkload) -> dict[str, Any]:
    return {
        "origins": list(workload.origins),
        "published_as": workload.spec.published_as,
        "in_place_of": workload.in_place_of,
        "sessions": workload.sessions,
        "turns": workload.turns,
        "prompt_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
        "over_limit": workload.over_limit,
        "rate_per_s": workload.arrivals.rate_per_s if workload.arrivals is not None else None,
        "arrivals": workload.arrivals.process if workload.arrivals is not None else None,
        "played_by": "agents" if workload.driver is not None else "replay",
    }


def _beside(workload: PlannedWorkload) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is replayed beside real agents, under the name of its own figures."""
    if workload.driver is None:
        return
    from workloads.agents.mixed import background_name, background_of

    chat = background_of(workload.driver, workload.spec.agents)
    if chat is None:
        return
    origins = sorted({session.origin for session in chat.load(0)})
    for workers in workload.loads:
        yield (
            background_name(workload.name, chat, workers),
            {
                "origins": origins,
                "rate_per_s": chat.rate_per_s,
                "arrivals": chat.process,
                "played_by": "replay",
                "beside": workload.name,
            },
        )


def _replica_facts(cluster: Cluster, index: int) -> dict[str, Any]:
    replica = cluster.replicas[index]
    return {
        "id": replica.id,
        "role": replica.role,
        "gpu": replica.gpu.name,
        "gpus": replica.gpus,
        "weights_gib": replica.weights_gib,
        "kv_gib": replica.kv_gib,
        "kv_tokens": replica.kv_tokens,
        "context_limit": replica.context_limit,
    }
