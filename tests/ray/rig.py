"""A Ray cluster of several nodes on this machine."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

START_S = 180.0
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}


@contextmanager
def ray_cluster(nodes: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """A `ray.cluster_utils.Cluster`; the first node is its head, the others come in order.

    Yields (cluster, worker nodes).
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # on a busy machine
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        from ray.cluster_utils import Cluster

        _wait_longer_for_nodes()
        head = {**NODE, **nodes[0], "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            others = [cluster.add_node(**{**NODE, **node}) for node in nodes[1:]]
            cluster.wait_for_nodes()
            yield cluster, others
        finally:
            import ray

            ray.shutdown()
            cluster.shutdown()


def _wait_longer_for_nodes() -> None:
    """Ray gives a node 30 s to be there, whatever its settings say: too little on a machine that
    has much else to do."""
    from ray._private import services

    look = services.get_node
    if look.__name__ == "patient":
        return

    def patient(*args: Any, **kwargs: Any) -> Any:
        deadline = time.monotonic() + START_S
        while True:
            try:
                return look(*args, **kwargs)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    services.get_node = patient
