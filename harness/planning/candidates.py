"""What a search tries: GPU kinds, tensor parallelism, splits into pools, schedulers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from agentsched import UsageError
from harness.capacity import Cluster, resolve_cluster
from harness.gpus import find_gpu
from harness.models import Model
from harness.specfile import parse_document
from harness.topology import read_topology

TENSOR_PARALLEL = (1, 2, 4, 8)
SPLITS = ((1, 1), (1, 3), (3, 1))
"""Prefill to decode replicas that are tried. Our choice: those of the shipped topologies, and one
the other way round."""
SPLIT_SCHEDULERS = ("disaggregated", "conserve", "ampd")
"""Policies for prefill and decode pools; all others get mixed replicas."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A GPU kind and its price, which the user gives."""

    gpu: str
    usd_per_hour: float
    """Of one GPU."""

    @classmethod
    def parse(cls, text: str) -> Offer:
        """The offer in `h100:3.5`.

        Raises:
            UsageError: not of that form, no such kind, or no price above 0.
        """
        kind, colon, price = text.partition(":")
        try:
            value = float(price)
        except ValueError:
            value = float("nan")
        if not colon or not isfinite(value) or value <= 0:
            raise UsageError(
                f"--gpu {text}: no GPU kind with its price",
                "write KIND:USD, the price of one GPU for an hour, as --gpu h100:3.5",
            )
        find_gpu(kind)
        if kind == "cpu":
            raise UsageError("--gpu cpu: there are no step times for CPUs", "name a GPU kind")
        return cls(kind, value)


@dataclass(frozen=True, slots=True)
class Line:
    """One direction of the search: everything but the number of replicas."""

    offer: Offer
    tensor_parallel: int
    split: tuple[int, int] | None
    """Prefill to decode replicas; None: mixed ones."""
    scheduler: str

    @property
    def unit(self) -> int:
        """Replicas that are added at a time."""
        return sum(self.split) if self.split is not None else 1

    def replicas(self, units: int) -> int:
        return units * self.unit

    def gpus(self, units: int) -> int:
        return self.replicas(units) * self.tensor_parallel

    def cost(self, units: int) -> float:
        """USD an hour."""
        return self.gpus(units) * self.offer.usd_per_hour

    def topology(self, units: int) -> str:
        """In words, as `4x2xh100` or `2p6d-1xa40`."""
        each = f"{self.tensor_parallel}x{self.offer.gpu}"
        if self.split is None:
            return f"{units}x{each}"
        prefill, decode = self.split
        return f"{units * prefill}p{units * decode}d-{each}"

    def cluster(self, model: Model, units: int) -> Cluster:
        """Raises TopologyError if the model does not fit."""
        ranks = self.tensor_parallel
        groups: list[dict[str, object]] = [{"tensor_parallel": ranks, "count": units}]
        if self.split is not None:
            prefill, decode = (units * part for part in self.split)
            groups = [
                {"role": "prefill", "tensor_parallel": ranks, "count": prefill},
                {"role": "decode", "tensor_parallel": ranks, "count": decode},
            ]
        nodes = [{"gpu": self.offer.gpu, "gpus": ranks, "count": self.replicas(units)}]
        name = self.topology(units)
        text = json.dumps({"name": name, "nodes": nodes, "replicas": groups})
        return resolve_cluster(model, read_topology(parse_document(text, name)))


def lines_of(
    model: Model, offers: Sequence[Offer], schedulers: Sequence[str], max_gpus: int
) -> tuple[list[Line], list[str]]:
    """What can be tried with at most `max_gpus` GPUs, and why other things cannot be."""
    found: list[Line] = []
    refused: list[str] = []
    for offer in offers:
        for ranks in TENSOR_PARALLEL:
            why = _refusal(model, offer, ranks)
            if why is not None:
                refused.append(why)
                continue
            sizes = _of_size(offer, ranks, schedulers)
            found += [line for line in sizes if line.gpus(1) <= max_gpus]
    return found, refused


def _of_size(offer: Offer, ranks: int, schedulers: Sequence[str]) -> Iterator[Line]:
    for scheduler in schedulers:
        if scheduler in SPLIT_SCHEDULERS:
            for split in SPLITS:
                yield Line(offer, ranks, split, scheduler)
        else:
            yield Line(offer, ranks, None, scheduler)


def _refusal(model: Model, offer: Offer, ranks: int) -> str | None:
    from harness.sim.step_time import step_time_for

    try:
        cluster = Line(offer, ranks, None, "").cluster(model, 1)
        step_time_for(model, cluster.replicas[0])
    except UsageError as error:  # it does not fit, or there are no step times for it
        return error.message
    return None
