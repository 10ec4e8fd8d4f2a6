"""All replicas of one topology on a Ray cluster: placed, started, watched, stopped."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentsched import AgentschedError, TopologyError
from harness.live.parts import ReplicaAddress
from harness.ray.placement import ACCELERATOR, Machine, Need, bundles, needs_of, place
from harness.ray.server import Order, ReplicaActor
from harness.ray.session import load_ray
from harness.topology import Topology

WATCH_S = 5.0
"""Between two looks at all replicas. Our choice."""
RESERVE_S = 60.0
"""Until Ray has set the GPUs aside. Our choice; a placement was found before, so it is short."""
ANSWER_S = 20.0
"""An actor that does not answer within this is taken for lost. Our choice."""
RESTARTS = 3
"""A replica that went down more often in a row, without being seen healthy, stays down."""
TAIL_BYTES = 64 << 10


@dataclass(slots=True)
class _Kept:
    """One replica."""

    order: Order
    group: Any
    bundle: int
    gpus: int
    actor: Any = None
    address: ReplicaAddress | None = None
    state: str = "starting"
    failures: int = 0
    restarts: int = 0
    log: bytes = b""
    """What was pulled and not handed on yet, its end only."""


class Keeper:
    """Runs as an actor, so that replicas outlive the command that started them.

    Args:
        orders: one for each replica of the topology, in order.
        cpus: that each replica takes.
    """

    def __init__(self, topology: Topology, orders: Sequence[Order], cpus: float) -> None:
        self._ray = load_ray()
        self._topology, self._orders, self._cpus = topology, orders, cpus
        self._groups: list[Any] = []
        self._kept: list[_Kept] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def up(self) -> list[ReplicaAddress]:
        """Set GPUs aside, start all replicas, begin to watch them.

        Raises:
            TopologyError: they do not fit the cluster, with the arithmetic.
            AgentschedError: one did not come up; all others are stopped.
        """
        try:
            with self._lock:
                self._reserve()
                for kept in self._kept:
                    kept.actor = self._actor(kept)
                starts = [kept.actor.start.remote() for kept in self._kept]
                for kept, start in zip(self._kept, starts, strict=True):
                    kept.address = self._result(start)
                    kept.state = "up"
        except BaseException:
            self.down()
            raise
        self._thread.start()
        return self.addresses()

    def addresses(self) -> list[ReplicaAddress]:
        return [kept.address for kept in self._kept if kept.address is not None]

    def reset(self, cell: str) -> dict[str, Mapping[str, Any]]:
        """Make all as new before a cell."""
        with self._lock:
            done = [kept.actor.reset.remote(cell) for kept in self._kept]
            return {
                kept.order.name: self._result(one)
                for kept, one in zip(self._kept, done, strict=True)
            }

    def status(self) -> dict[str, Any]:
        """Of each replica: state, address, machine, restarts."""
        first = self._orders[0]
        return {
            "topology": self._topology.name,
            "model": first.model,
            "engine": first.engine,
            "replicas": {
                kept.order.name: {
                    "state": kept.state,
                    "role": kept.order.role,
                    "gpus": kept.gpus,
                    "url": kept.address.url if kept.address is not None else "",
                    "restarts": kept.restarts,
                }
                for kept in self._kept
            },
        }

    def facts(self) -> dict[str, Any]:
        """What runs, for a manifest."""
        asked = [(kept, kept.actor.facts.remote()) for kept in self._kept]
        return {
            "on": "ray",
            "restarts": {kept.order.name: kept.restarts for kept in self._kept},
            "replicas": {kept.order.name: self._result(one) for kept, one in asked},
        }

    def new_logs(self) -> dict[str, bytes]:
        """By replica, what its log has got since the last call."""
        with self._lock:
            for kept in self._kept:
                self._pull_log(kept)
            logs = {kept.order.name: kept.log for kept in self._kept}
            for kept in self._kept:
                kept.log = b""
            return logs

    def down(self) -> None:
        """Stop all, give the GPUs back; may be called twice."""
        self._stop.set()
        with self._lock:
            stops = [kept.actor.stop.remote() for kept in self._kept if kept.actor is not None]
            self._ray.wait(stops, num_returns=len(stops), timeout=2 * ANSWER_S) if stops else None
            for kept in self._kept:
                if kept.actor is not None:
                    self._ray.kill(kept.actor)
                kept.actor, kept.state = None, "down"
            for group in self._groups:
                self._ray.util.remove_placement_group(group)
            self._groups = []

    # Placing and starting.

    def _reserve(self) -> None:
        nodes = {node.name: (node, ident) for ident, node in machines(self._ray)}
        where = place(self._topology, [node for node, _ in nodes.values()])
        for need in sorted(needs_of(self._topology), key=lambda need: -need.gpus):
            machine, ident = nodes[where[need.node]]
            parts = bundles(self._topology, need, machine, self._cpus)
            group = self._ray.util.placement_group(
                parts, strategy="STRICT_PACK", _soft_target_node_id=ident
            )
            self._groups.append(group)
            self._await(group, need, machine)
            for position, index in enumerate(need.replicas):
                order = self._orders[index]
                gpus = int(parts[position].get("GPU", 0))
                self._kept.append(_Kept(order, group, position, gpus))
        index_of = {order.name: index for index, order in enumerate(self._orders)}
        self._kept.sort(key=lambda kept: index_of[kept.order.name])

    def _await(self, group: Any, need: Need, machine: Machine) -> None:
        if not group.wait(RESERVE_S):
            raise TopologyError(
                f"Ray set no {need.gpus} GPUs and {self._cpus * len(need.replicas):g} CPUs aside "
                f"for {need.node} on one machine within {RESERVE_S:g} s ({machine.name} had "
                f"{machine.gpus} GPUs free)",
                "somebody else may have taken them: see `ray status`; or lower --cpus",
            )

    def _actor(self, kept: _Kept) -> Any:
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            kept.group, placement_group_bundle_index=kept.bundle
        )
        remote = self._ray.remote(ReplicaActor).options(
            num_cpus=self._cpus,
            num_gpus=kept.gpus,
            scheduling_strategy=strategy,
            max_concurrency=2,  # health is asked while it starts
        )
        return remote.remote(kept.order)

    def _result(self, ref: Any) -> Any:
        """What an actor's call gave; its error as ours."""
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, AgentschedError):
                raise type(error.cause)(error.cause.message, error.cause.remedy) from None
            raise AgentschedError(
                f"a replica failed: {error.cause}", "see its log: agentsched status --logs DIR"
            ) from error
        except self._ray.exceptions.RayError as error:
            raise AgentschedError(
                f"a replica's machine or actor was lost: {type(error).__name__}",
                "see `ray status`; then `agentsched down` and `up` again",
            ) from error

    # Watching.

    def _watch(self) -> None:
        while not self._stop.wait(WATCH_S):
            for kept in self._kept:
                with self._lock:
                    if not self._stop.is_set():
                        self._look_at(kept)

    def _look_at(self, kept: _Kept) -> None:
        if kept.state == "given up":
            return
        self._pull_log(kept)
        state = self._ask(kept.actor.healthy)
        if state is True:
            kept.state, kept.failures = "up", 0
            return
        kept.failures += 1
        if kept.failures > RESTARTS:
            kept.state = "given up"
            return
        kept.state = "restarting"
        if state is None:  # the actor is lost, or its machine; Ray moves the group if it can
            self._ray.kill(kept.actor)
            port = int(kept.address.url.rpartition(":")[2]) if kept.address is not None else None
            kept.order = replace(kept.order, port=port)
            kept.actor = self._actor(kept)
        try:
            kept.address = self._result(kept.actor.start.remote())
        except AgentschedError as error:
            kept.log += f"\nnot restarted: {error.message}\n".encode()
            return
        kept.restarts += 1
        kept.state = "up"

    def _ask(self, method: Any) -> Any:
        """None where nobody answers."""
        try:
            return self._ray.get(method.remote(), timeout=ANSWER_S)
        except (self._ray.exceptions.RayError, TimeoutError):
            return None

    def _pull_log(self, kept: _Kept) -> None:
        new = self._ask(kept.actor.new_log) if kept.actor is not None else None
        kept.log = (kept.log + (new or b""))[-TAIL_BYTES:]


def machines(ray: Any) -> list[tuple[str, Machine]]:
    """Nodes of the cluster with what is free on them: (id, machine)."""
    from ray._private.state import available_resources_per_node

    free: dict[str, dict[str, float]] = available_resources_per_node()
    found = []
    for number, node in enumerate(n for n in ray.nodes() if n["Alive"]):
        kinds = [name for name in node["Resources"] if name.startswith(ACCELERATOR)]
        kind = kinds[0].removeprefix(ACCELERATOR) if len(kinds) == 1 else None
        ident = node["NodeID"]
        name = f"{node['NodeManagerHostname']}#{number}"
        found.append((ident, Machine(name, int(free.get(ident, {}).get("GPU", 0)), kind)))
    return found
