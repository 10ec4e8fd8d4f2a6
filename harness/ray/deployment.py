"""Replicas on Ray, as commands and runs use them: up, down, status, and a fleet of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentsched import AgentschedError, UsageError
from harness.capacity import Cluster
from harness.live.parts import ReplicaAddress
from harness.ray.executor import HEAD
from harness.ray.keeper import Keeper
from harness.ray.server import EMULATOR, Order, alone
from harness.ray.session import NAMESPACE, joined
from results.cells import disk
from results.records import Label

if TYPE_CHECKING:
    from harness.live.engines.settings import EngineSettings

KEEPER = "agentsched-keeper"
"""Name of the detached actor of `agentsched up`."""
CPUS = 1.0
"""That a replica takes of its machine. Our choice; an engine's own processes need more, give it
with --cpus."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to put on the cluster."""

    cluster: Cluster
    engine: str
    """`emulator`, or a real engine as `harness.live.engines` names it."""
    memory: Mapping[str, Any]
    """As the cluster was resolved with it."""
    launch: EngineSettings | None = None
    speed: float = 1.0
    cpus: float = CPUS

    def orders(self) -> list[Order]:
        """One for each replica.

        Raises:
            UsageError: emulated replicas would have to hand KV over.
        """
        if self.engine == EMULATOR and {r.role for r in self.cluster.replicas} != {"mixed"}:
            raise UsageError(
                "emulated replicas hand KV over within one process only, and on Ray each has its "
                "own",
                "use a topology of mixed replicas, or `agentsched emulate` on one machine",
            )
        specs = self.cluster.topology.replicas
        return [
            Order(
                name=plan.id,
                engine=self.engine,
                model=self.cluster.model.name,
                topology=alone(plan.id, spec),
                role=plan.role,  # type: ignore[arg-type]
                memory=self.memory,
                launch=self.launch,
                speed=self.speed,
            )
            for plan, spec in zip(self.cluster.replicas, specs, strict=True)
        ]


def launch_settings(assignments: Sequence[str]) -> EngineSettings:
    """Settings of a real engine's start, from `launch.NAME=VALUE` texts.

    Raises:
        UsageError: one is not of that form, unknown, or out of range.
    """
    from pydantic import TypeAdapter, ValidationError

    from harness.live.engines.settings import EngineSettings
    from harness.overrides import assignment

    values: dict[str, Any] = {}
    names = tuple(one.name for one in fields(EngineSettings))
    for text in assignments:
        path, value = assignment(text)
        if len(path) != 2 or path[0] != "launch" or path[1] not in names:
            raise UsageError(
                f"--set {text}: no setting of an engine's start",
                f"settings: {', '.join(f'launch.{name}' for name in names)}",
            )
        values[str(path[1])] = value
    try:
        return TypeAdapter(EngineSettings).validate_python(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, ("launch", *problem["loc"])))
        raise UsageError(f"`{where}`: {problem['msg']}", f"change `{where}`") from None


def start_keeper(ray: Any, wanted: Wanted, *, detached: bool) -> Any:
    """The actor that keeps the replicas; nothing is placed before its `up`."""
    options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": 4}
    if HEAD in ray.cluster_resources():
        options["resources"] = {HEAD: 0.001}
    if detached:
        options |= {"name": KEEPER, "namespace": NAMESPACE, "lifetime": "detached"}
    return (
        ray.remote(Keeper)
        .options(**options)
        .remote(wanted.cluster.topology, wanted.orders(), wanted.cpus)
    )


def find_keeper(ray: Any) -> Any:
    """The keeper of `agentsched up`; None where there is none."""
    try:
        return ray.get_actor(KEEPER, namespace=NAMESPACE)
    except ValueError:
        return None


def ask(ray: Any, call: Any) -> Any:
    """What a keeper's call gives; its error as ours.

    Raises:
        AgentschedError: as the keeper raised it, or it is lost.
    """
    try:
        return ray.get(call)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, AgentschedError):
            raise error.cause from None
        raise AgentschedError(
            f"unexpected {type(error.cause).__name__}: {error.cause}",
            "the same command with --debug, and report what it shows",
        ) from error
    except ray.exceptions.RayError as error:
        raise AgentschedError(
            f"the keeper of the replicas is lost: {type(error).__name__}",
            "its replicas went with it; see `ray status`, then start them again",
        ) from error


def up(wanted: Wanted, address: str | None) -> Sequence[ReplicaAddress]:
    """Start replicas that stay until `down`.

    Raises:
        UsageError: others are up already.
        TopologyError: they do not fit the cluster, with the arithmetic.
        AgentschedError: one did not come up.
    """
    orders_are_possible = wanted.orders()
    with joined(address) as ray:
        if find_keeper(ray) is not None:
            raise UsageError(
                "replicas are up on this cluster already",
                "see them with `agentsched status`, stop them with `agentsched down`",
            )
        keeper = start_keeper(ray, wanted, detached=True)
        try:
            found: list[ReplicaAddress] = ask(ray, keeper.up.remote())
        except BaseException:
            ray.kill(keeper)
            raise
        assert len(found) == len(orders_are_possible)
        return found


def down(address: str | None) -> bool:
    """Stop what `up` started. Returns whether there was anything."""
    with joined(address) as ray:
        keeper = find_keeper(ray)
        if keeper is None:
            return False
        ask(ray, keeper.down.remote())
        ray.kill(keeper)
        return True


def status(address: str | None, logs: Path | None = None) -> dict[str, Any] | None:
    """What is up; None if nothing is.

    Args:
        logs: folder that gets what the logs of the replicas have got since the last time.
    """
    with joined(address) as ray:
        keeper = find_keeper(ray)
        if keeper is None:
            return None
        if logs is not None:
            append_logs(logs, ask(ray, keeper.new_logs.remote()))
        found: dict[str, Any] = ask(ray, keeper.status.remote())
        return found


def append_logs(folder: Path, logs: Mapping[str, bytes]) -> None:
    """Append to FOLDER/REPLICA.log."""
    with disk(folder, "write the logs of replicas"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in logs.items():
            with (folder / f"{name}.log").open("ab") as log:
                log.write(content)


class RayFleet:
    """Replicas of one run on a Ray cluster; a `harness.live.parts.Fleet`.

    Args:
        address: as `harness.ray.session.joined` takes it.
        folder: logs are pulled back to FOLDER/REPLICA.log.
    """

    gpus: tuple[int, ...] = ()
    """None of this machine's are watched."""

    def __init__(self, wanted: Wanted, address: str | None, folder: Path) -> None:
        self.label: Label = "emulated" if wanted.engine == EMULATOR else "measured"
        wanted.orders()  # raises
        self._wanted, self._address, self._folder = wanted, address, folder
        self._stack = ExitStack()
        self._ray: Any = None
        self._keeper: Any = None

    @property
    def model(self) -> str:
        launch = self._wanted.launch
        return (launch.served_name if launch else None) or self._wanted.cluster.model.name

    def start(self) -> Sequence[ReplicaAddress]:
        self._ray = self._stack.enter_context(joined(self._address))
        self._keeper = start_keeper(self._ray, self._wanted, detached=False)
        try:
            found: list[ReplicaAddress] = ask(self._ray, self._keeper.up.remote())
        except BaseException:
            self.close()
            raise
        return found

    def reset(self, cell: str) -> Mapping[str, Any]:
        done: Mapping[str, Any] = ask(self._ray, self._keeper.reset.remote(cell))
        self._pull_logs()
        return done

    def facts(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = ask(self._ray, self._keeper.facts.remote())
        return found

    def close(self) -> None:
        if self._keeper is None:
            return
        keeper, self._keeper = self._keeper, None
        try:
            append_logs(self._folder, ask(self._ray, keeper.new_logs.remote()))
            ask(self._ray, keeper.down.remote())
        finally:
            self._ray.kill(keeper)
            self._stack.close()

    def _pull_logs(self) -> None:
        append_logs(self._folder, ask(self._ray, self._keeper.new_logs.remote()))
