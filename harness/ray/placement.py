"""Which machine of a Ray cluster each node of a topology goes to.

A node of a topology becomes one placement group, packed strictly on one machine, with one bundle
for each of its replicas; so a tensor-parallel replica never spans two machines, and pools and
tiers of GPUs stay as the topology draws them. Several nodes may share a machine that is large
enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentsched import TopologyError
from harness.topology import ReplicaSpec, Topology

ACCELERATOR = "accelerator_type:"
"""Prefix of the resource by which Ray names the kind of a node's GPUs."""
SLIVER = 0.001
"""So much of that resource a replica takes: it says where, not how much."""
SEARCH_LIMIT = 200_000
"""Steps of the search for a placement, after which it counts as impossible. Our choice."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of a Ray cluster."""

    name: str
    gpus: int
    """Free ones."""
    kind: str | None = None
    """Of its GPUs, as Ray names it (`H100`); None: it does not say."""

    def offers(self, gpu: str, only_kind: bool) -> bool:
        """Whether its GPUs are of the kind; unnamed ones are, where only one kind is asked for."""
        if self.kind is None:
            return only_kind
        return plain(self.kind) == plain(gpu)


@dataclass(frozen=True, slots=True)
class Need:
    """GPUs that one node of a topology takes on its machine."""

    node: str
    gpu: str
    gpus: int
    replicas: tuple[int, ...]
    """Their positions in the topology."""


def plain(kind: str) -> str:
    """A GPU kind without case and punctuation, as `rtx4090`; `NVIDIA-` and `Tesla-` left out."""
    letters = "".join(c for c in kind.lower() if c.isalnum())
    for maker in ("nvidia", "tesla"):
        letters = letters.removeprefix(maker)
    return letters


def needs_of(topology: Topology) -> list[Need]:
    """What each node with replicas takes, in the topology's order."""
    found = []
    for node in topology.nodes:
        here = [i for i, r in enumerate(topology.replicas) if r.node.name == node.name]
        if here:
            gpus = sum(gpus_of(topology.replicas[i]) for i in here)
            found.append(Need(node.name, node.gpu.name, gpus, tuple(here)))
    return found


def gpus_of(replica: ReplicaSpec) -> int:
    """GPUs that it takes; none for one on CPUs."""
    return 0 if replica.node.gpu.name == "cpu" else replica.gpus


def place(topology: Topology, machines: Sequence[Machine]) -> dict[str, str]:
    """Machine of each node of the topology, by name.

    Raises:
        TopologyError: they do not fit, with the arithmetic.
    """
    needs = sorted(needs_of(topology), key=lambda need: -need.gpus)
    one_kind = len({need.gpu for need in needs}) <= 1
    found = _search(needs, list(machines), one_kind)
    if found is None:
        raise TopologyError(
            f"topology `{topology.name}` does not fit the Ray cluster: "
            f"{arithmetic(topology, machines)}",
            "add machines, free GPUs (agentsched down), or choose a smaller topology",
        )
    return found


def arithmetic(topology: Topology, machines: Sequence[Machine]) -> str:
    """What is needed, what there is, and which of it cannot be had."""
    needs = needs_of(topology)
    one_kind = len({need.gpu for need in needs}) <= 1
    parts = []
    for gpu in dict.fromkeys(need.gpu for need in needs):
        sizes = [need.gpus for need in needs if need.gpu == gpu]
        fitting = [m for m in machines if m.offers(gpu, one_kind)]
        have = ", ".join(f"{m.name} {m.gpus}" for m in fitting) or "none"
        total = sum(m.gpus for m in fitting)
        rooms = sum(m.gpus // max(max(sizes), 1) for m in fitting)
        text = (
            f"{gpu}: needs {_sizes(sizes)} GPUs on one machine each = {sum(sizes)}; "
            f"free: {have} = {total}"
        )
        if total < sum(sizes):
            text += f"; {sum(sizes) - total} too few"
        elif len(set(sizes)) == 1 and rooms < len(sizes):
            text += f"; room for {rooms} of {len(sizes)}"
        parts.append(text)
    return "; ".join(parts)


def _sizes(sizes: Sequence[int]) -> str:
    counts = {size: list(sizes).count(size) for size in dict.fromkeys(sizes)}
    return " + ".join(f"{count} x {size}" for size, count in counts.items())


def _search(
    needs: Sequence[Need], machines: Sequence[Machine], one_kind: bool
) -> dict[str, str] | None:
    """First fit, largest first, with a way back where it fails."""
    free = [machine.gpus for machine in machines]
    chosen: list[int] = []
    steps = 0

    def options(need: Need) -> Iterator[int]:
        seen: set[tuple[int, str | None]] = set()
        for i, machine in enumerate(machines):
            alike = (free[i], machine.kind)
            if free[i] >= need.gpus and machine.offers(need.gpu, one_kind) and alike not in seen:
                seen.add(alike)
                yield i

    pending = [options(needs[0])] if needs else []
    while pending:
        steps += 1
        target = next(pending[-1], None)
        if steps >= SEARCH_LIMIT:
            return None
        if target is None:
            pending.pop()
            if chosen:
                free[chosen[-1]] += needs[len(chosen) - 1].gpus
                chosen.pop()
            continue
        free[target] -= needs[len(chosen)].gpus
        chosen.append(target)
        if len(chosen) == len(needs):
            return {n.node: machines[i].name for n, i in zip(needs, chosen, strict=True)}
        pending.append(options(needs[len(chosen)]))
    return None if needs else {}


def bundles(
    topology: Topology, need: Need, machine: Machine, cpus: float
) -> list[dict[str, float]]:
    """One bundle for each replica of a node, with `cpus` CPUs and its GPUs."""
    found = []
    for index in need.replicas:
        bundle = {"CPU": cpus}
        gpus = gpus_of(topology.replicas[index])
        if gpus:
            bundle["GPU"] = float(gpus)
            if machine.kind is not None:
                bundle[ACCELERATOR + machine.kind] = SLIVER
        found.append(bundle)
    return found
