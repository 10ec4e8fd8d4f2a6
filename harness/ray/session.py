"""Joining a Ray cluster, quietly, and leaving it as it was."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from agentsched import AgentschedError, UsageError

NAMESPACE = "agentsched"
"""Of our named actors."""


def load_ray() -> Any:
    """The ray package.

    Raises:
        UsageError: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return import_module("ray")
    except ImportError:
        raise UsageError("Ray is not installed", "pip install 'agentsched[ray]'") from None


@contextmanager
def joined(address: str | None) -> Iterator[Any]:
    """The ray package, connected; a connection that was there before is used and kept.

    Args:
        address: `ray://HOST:PORT`, `HOST:PORT` or `auto`; None: the cluster that RAY_ADDRESS names
            or that runs on this machine, else a new one of this machine alone.

    Raises:
        UsageError: Ray is not installed.
        AgentschedError: no cluster answers there.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({} if address else {"include_dashboard": False}),
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        first = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise AgentschedError(
            f"no Ray cluster answers at {address or 'this machine'}: {first[0]}",
            "start one with `ray start --head`, and give its address as ray://HOST:10001",
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()
