"""The run specification: what to run, on what, with which schedulers, how often.

A specification is a YAML file (a preset is one that ships with the package); flags of the command
line are laid over it. Every error names the file, line and field, or the flag, it came from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from agentsched import InputError, UsageError
from harness.overrides import Flags, lay_over
from harness.specfile import (
    Document,
    FlagError,
    ValuePath,
    closest,
    dotted,
    parse_document,
    read_document,
)

MAX_SEEDS = 1_000

Engine = Literal["sim", "emulator", "vllm", "sglang", "vllm-cpu"]

Text = Annotated[str, Field(strict=True, min_length=1)]
Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Seed = Annotated[int, Field(strict=True, ge=0)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


def _listed(value: Any) -> Any:
    """Let a single value stand for a list of one."""
    return [value] if isinstance(value, (str, int, float)) else value


def _seed_list(value: Any) -> Any:
    """A count K stands for the seeds 0 to K-1."""
    if isinstance(value, (float, str, bool)):
        raise ValueError(f"`seeds` cannot be {value!r}; give a count, or a list of whole numbers")
    if not isinstance(value, int):
        return value
    if not 1 <= value <= MAX_SEEDS:
        raise ValueError(f"{value} seeds; give a count from 1 to {MAX_SEEDS:,}, or a list")
    return list(range(value))


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ArrivalsSpec(_Model):
    """Sessions that arrive by themselves (open loop), instead of workers that take them up."""

    process: Literal["poisson", "gamma", "recorded"] = "poisson"
    """gamma: bursty; recorded: as the trace says."""
    rate_per_s: Annotated[
        tuple[Annotated[Number, Field(ge=1e-6)], ...], BeforeValidator(_listed)
    ] = ()
    """Mean sessions a second; one cell for each rate. A seed gives all rates the same gaps but for
    their scale. Recorded arrivals may go without: they then come as fast as recorded."""
    variation: Annotated[Number, Field(ge=0, le=100)] = 3.0
    """Of gamma arrivals: standard deviation of the gaps over their mean; Poisson has 1. Our
    choice."""

    @field_validator("rate_per_s")
    @classmethod
    def _distinct_rates(cls, rates: tuple[float, ...]) -> tuple[float, ...]:
        _refuse_repeats((f"{rate:g}" for rate in rates), "rate", "give each once")
        return rates

    @model_validator(mode="after")
    def _a_rate(self) -> Self:
        if not self.rate_per_s and self.process != "recorded":
            raise ValueError(f"`rate_per_s` is missing; {self.process} arrivals need one")
        return self


class SloSpec(_Model):
    """Objectives that SLO attainment and goodput are counted against."""

    ttft_s: Annotated[Number, Field(gt=0)] | None = None
    tpot_ms: Annotated[Number, Field(gt=0)] | None = None
    ttfet_s: Annotated[Number, Field(gt=0)] | None = None


class WorkloadSpec(_Model):
    """One workload, and the loads to run it under: `workers`, or `arrivals`."""

    name: Text
    """A shipped workload, or the path of a trace (relative to the specification's folder)."""
    sessions: Count | None = None
    """How many sessions to generate or take; None: as many as the workload has."""
    workers: Annotated[tuple[Count, ...], BeforeValidator(_listed)]
    """Sessions active at once, one cell for each number."""
    arrivals: ArrivalsSpec | None = None
    """How sessions arrive if no number of workers takes them up."""

    settings: dict[Text, Any] = {}
    """Of a generated workload."""
    play: Literal["auto", "agents", "replay"] = "auto"
    """On live engines: real agents, or a replay; auto: agents where the workload has them."""
    agents_of: Text | None = None
    """The workload whose real agents play it on live engines, where the generated sessions have
    another name; None: its own."""
    agents: dict[Text, Any] = {}
    """Settings of the real agents, such as `tasks`."""
    published_as: Text | None = None
    """The paper's workload that this one stands in for; its published figures are shown."""

    @model_validator(mode="before")
    @classmethod
    def _arrivals_instead_of_workers(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("arrivals") is not None:
            return {"workers": (), **given}
        return given

    @model_validator(mode="after")
    def _one_kind_of_load(self) -> Self:
        if self.arrivals is not None and self.workers:
            raise ValueError("`workers` and `arrivals` exclude each other; give one of them")
        if self.arrivals is None and not self.workers:
            raise ValueError("`workers` is an empty list; give a list of at least 1")
        return self

    @field_validator("workers")
    @classmethod
    def _distinct_workers(cls, workers: tuple[int, ...]) -> tuple[int, ...]:
        _refuse_repeats(map(str, workers), "number of workers", "give each once")
        return workers


class MemorySpec(_Model):
    """How much KV cache a replica has; None leaves it to topology and model."""

    gpu_memory_utilization: Annotated[Number, Field(gt=0, le=1)] | None = None
    """Share of each GPU that the engine may use."""
    overhead_gib: Annotated[Number, Field(ge=0)] | None = None
    """GPU memory that is neither weights nor KV cache."""
    block_size: Count | None = None
    """Tokens of a KV block."""
    max_model_len: Annotated[Count, Field(ge=2)] | None = None
    """Tokens of prompt and output of one turn."""
    kv_cache_dtype: Text | None = None
    """`float8` halves a bfloat16 cache."""


class RunSpec(_Model):
    """A whole run: every workload x scheduler x workers x seed is a cell."""

    name: Text = "run"
    """Names the run folder unless -o does."""
    description: str = ""
    model: Text
    """A shipped model; `agentsched list models`."""
    topology: Text
    """Replicas and GPUs, such as 4x2xh100; `agentsched list topologies`."""
    engine: Engine = "sim"
    """What serves the model: simulated replicas, the emulator behind real HTTP, or real engines."""
    workloads: Annotated[tuple[WorkloadSpec, ...], Field(min_length=1)]
    schedulers: Annotated[tuple[Text, ...], BeforeValidator(_listed)] = ()
    """Names; only the command line may give file.py:Class."""
    scheduler_settings: dict[Text, dict[Text, Any]] = {}
    """Settings by scheduler name."""
    routers: Annotated[tuple[Text, ...], BeforeValidator(_listed)] = ()
    """Other people's routers in place of a scheduler, as `vllm-router:cache_aware`; on live
    engines."""
    router_settings: dict[Text, dict[Text, Any]] = {}
    """Settings by router."""
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(_seed_list), Field(min_length=1)] = (0,)
    """A list, or a count K for the seeds 0 to K-1. All schedulers run on the same seeds."""
    sim: dict[Text, Any] = {}
    """Settings of the simulated world (harness.sim.settings.SimSettings)."""
    engine_settings: dict[Text, Any] = {}
    """Settings of the simulated engines (harness.sim.engine_types.EngineParams)."""
    live: dict[Text, Any] = {}
    """How cells on live engines are run (harness.live.settings.LiveSettings)."""
    launch: dict[Text, Any] = {}
    """How real engines are started (harness.live.engines.settings.EngineSettings)."""
    memory: MemorySpec = MemorySpec()
    """How much KV cache a replica has."""
    slo: SloSpec | None = None
    """Objectives that every turn or session is held against."""
    gateway_share: Annotated[Number, Field(gt=0, le=1)] = 1.0
    """Share of each replica's KV cache that this gateway may use."""
    max_failed_share: Annotated[Number, Field(ge=0, le=1)] = 0.05
    """A cell with a larger share of failed or rejected sessions is invalid (our choice)."""
    paper: Literal["tao", "smetric", "conserve"] | None = None
    """The paper whose setting this is; the report shows its figures beside ours."""

    _document: Document = PrivateAttr()

    @field_validator("name")
    @classmethod
    def _a_folder_below_runs(cls, name: str) -> str:
        path = PurePath(name)
        if path.is_absolute() or ".." in path.parts or path.name == "" or not name.isprintable():
            raise ValueError(f"`name` cannot be {name!r}: it names a folder below runs/")
        return name

    @field_validator("workloads")
    @classmethod
    def _distinct_workloads(cls, workloads: tuple[WorkloadSpec, ...]) -> tuple[WorkloadSpec, ...]:
        _refuse_repeats((w.name for w in workloads), "workload", "give its `workers` as a list")
        return workloads

    @field_validator("schedulers")
    @classmethod
    def _distinct_schedulers(cls, schedulers: tuple[str, ...]) -> tuple[str, ...]:
        _refuse_repeats(schedulers, "scheduler", "name it once")
        return schedulers

    @field_validator("routers")
    @classmethod
    def _distinct_routers(cls, routers: tuple[str, ...]) -> tuple[str, ...]:
        _refuse_repeats(routers, "router", "name it once")
        return routers

    @field_validator("seeds")
    @classmethod
    def _distinct_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        _refuse_repeats(map(str, seeds), "seed", "give each once")
        return seeds

    @property
    def text(self) -> str:
        """The specification as given, before flags were laid over it."""
        return self._document.text

    def path_of(self, workload: WorkloadSpec) -> Path:
        """Where a trace named in the specification is: relative to its file, or, given as a
        flag, to the current folder."""
        index = self.workloads.index(workload)
        named_by = self._document.place(("workloads", index, "name"))
        folder = self._document.folder
        return (
            Path(workload.name)
            if isinstance(named_by, str) or folder is None
            else (folder / workload.name)
        )

    def resolved(self) -> dict[str, Any]:
        """All fields with flags and defaults applied, as plain JSON values."""
        found: dict[str, Any] = json.loads(self.model_dump_json())
        return found

    def error(self, path: ValuePath, message: str, remedy: str) -> UsageError:
        return self._document.error(path, message, remedy)

    @contextmanager
    def locating(self, *path: str | int) -> Iterator[None]:
        """Make usage errors raised inside name the place in the specification they concern."""
        try:
            yield
        except (InputError, FlagError):
            raise
        except UsageError as error:
            raise self.error(path, error.message, error.remedy) from None


def _refuse_repeats(values: Iterable[str], what: str, advice: str) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} `{value}` is listed twice; {advice}")
        seen.add(value)


def preset_names() -> list[str]:
    """Presets by name: their paths under the presets folder, without `.yaml`."""
    root = Path(str(_preset_root()))
    return sorted(
        path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml")
    )


def load_spec(preset_or_path: str | Path | None, flags: Flags | None = None) -> RunSpec:
    """The specification in a file or preset, with flags laid over it.

    Args:
        preset_or_path: a preset's name or a YAML file; None: everything comes from flags.

    Raises:
        SpecError: the file is wrong: names file, line and field.
        UsageError: no such preset or file, or a flag is wrong: names the flag.
    """
    document = _document(preset_or_path)
    _refuse_code(document)
    return build_spec(lay_over(document, flags) if flags is not None else document)


def build_spec(document: Document) -> RunSpec:
    """Check a document's fields.

    Raises:
        UsageError: a field is missing, unknown, or has a value it cannot have.
    """
    try:
        spec = RunSpec.model_validate(document.data)
    except ValidationError as error:
        raise _explained(document, error) from None
    spec._document = document
    _check_arms(spec, document)
    return spec


def _check_arms(spec: RunSpec, document: Document) -> None:
    """There is something to compare, and the engine can have it."""
    if not spec.schedulers and not spec.routers:
        given = "schedulers" in document.data
        raise document.error(
            ("schedulers",) if given else (),
            "`schedulers` is an empty list; it must be a list of at least 1"
            if given
            else "the field `schedulers` is missing",
            CORRECT if given else "add `schedulers: ...`, or give it as --scheduler",
        )
    if spec.routers and spec.engine == "sim":
        raise document.error(
            ("routers",),
            "`routers` are real programs, which simulated replicas do not talk to",
            "use `engine: emulator`, or the scheduler of the same name",
        )


def _document(preset_or_path: str | Path | None) -> Document:
    if preset_or_path is None:
        return Document("command line", {}, {})
    given = str(preset_or_path)
    if given in preset_names():
        resource = _preset_root() / f"{given}.yaml"
        return parse_document(resource.read_text(encoding="utf-8"), f"preset {given}")
    path = Path(given)
    if path.suffix in {".yaml", ".yml"} or path.exists():
        return read_document(path)
    guess = closest(given, preset_names())
    hint = f"did you mean `{guess}`? " if guess else ""
    raise UsageError(
        f"no preset and no file named `{given}`",
        f"{hint}`agentsched list presets` shows the presets; a file ends in .yaml",
    )


def _preset_root() -> Any:
    return files("harness") / "data" / "presets"


def _refuse_code(document: Document) -> None:
    named = document.data.get("schedulers")
    for index, name in enumerate(named if isinstance(named, list) else [named]):
        if isinstance(name, str) and (".py" in name or ":" in name):
            raise document.error(
                ("schedulers", index),
                f"`{name}` names code to run, which a specification cannot",
                f"give it on the command line: --scheduler {name}",
            )


def _explained(document: Document, error: ValidationError) -> UsageError:
    """The first problem pydantic found, in our words and with its place.

    A misspelt field is told before the field that seems to be missing because of it.
    """
    problems = error.errors(include_url=False)
    problem = min(problems, key=lambda found: found["type"] != "extra_forbidden")
    path = tuple(part for part in problem["loc"] if part != "[key]")
    kind = problem["type"]
    field = str(path[-1]) if path else "?"
    if kind == "missing":
        where = f" of {dotted(path[:-1])}" if path[:-1] else ""
        by_flag = not document.text or isinstance(document.place(path[:-1]), str)
        return document.error(
            path[:-1],
            f"the field `{field}`{where} is missing",
            f"give it as {_flag_for(field)}" if by_flag else f"add `{field}: ...`",
        )
    if kind == "extra_forbidden":
        known = _fields_at(path[:-1])
        guess = closest(field, known)
        hint = f"did you mean `{guess}`? " if guess else ""
        return document.error(
            path, f"unknown field `{field}`", f"{hint}known fields: {', '.join(known)}"
        )
    if kind == "value_error":
        return document.error(path, problem["msg"].removeprefix("Value error, "), CORRECT)
    given = json.dumps(problem["input"], default=str)
    shown = given if len(given) <= 60 else given[:57] + "..."
    named = next((part for part in reversed(path) if isinstance(part, str)), "?")
    return document.error(
        path, f"`{named}` cannot be {shown}: it must be {wanted(problem)}", CORRECT
    )


def wanted(problem: Mapping[str, Any]) -> str:
    """What one of pydantic's errors says a value must be, in our words."""
    message = str(problem["msg"])
    words = _WANTED.get(problem["type"], message[:1].lower() + message[1:])
    return words.format(**{key: _plain(value) for key, value in problem.get("ctx", {}).items()})


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.12g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("'", "`")


CORRECT = "correct the value"
_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "string_too_short": "given",
    "tuple_type": "a list",
    "dict_type": "a mapping of names to values",
    "model_type": "a mapping of fields to values",
    "dataclass_type": "a mapping of fields to values",
    "dataclass_exact_type": "a mapping of fields to values",
    "too_short": "a list of at least {min_length}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
    "literal_error": "{expected}",
}


def _fields_at(path: ValuePath) -> list[str]:
    inner: dict[str, type[_Model]] = {
        "workloads": WorkloadSpec,
        "memory": MemorySpec,
        "slo": SloSpec,
    }
    model = inner.get(str(path[0]), RunSpec) if path else RunSpec
    if path and path[-1] == "arrivals":
        model = ArrivalsSpec
    return list(model.model_fields)


def _flag_for(field: str) -> str:
    flags = {"workloads": "--workload", "schedulers": "--scheduler", "routers": "--router"}
    return flags.get(field, f"--{field}")
