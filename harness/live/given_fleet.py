"""Replicas that run already: addressed, emptied between cells if they allow it, never stopped."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentsched import AgentschedError, UsageError
from harness.live.parts import ReplicaAddress, Role
from results.records import Label

RESETS = ("/reset_prefix_cache", "/flush_cache")
"""vLLM's (in its development mode only) and SGLang's call to empty the prefix cache."""
TIMEOUT_S = 30.0


class GivenFleet:
    """Replicas at given addresses.

    Args:
        replicas: id and role of each, in the order of `urls`.

    Raises:
        UsageError: there are more or fewer addresses than replicas.
    """

    label: Label = "measured"
    _model = ""

    @property
    def model(self) -> str:
        """What the first of them calls its model."""
        return self._model

    def __init__(self, urls: Sequence[str], replicas: Sequence[tuple[str, str]]) -> None:
        if len(urls) != len(replicas):
            raise UsageError(
                f"live.urls has {len(urls)} addresses, and the topology {len(replicas)} replicas",
                "give one address for each replica, in the topology's order",
            )
        self._replicas = [
            ReplicaAddress(name, url.rstrip("/").removesuffix("/v1"), cast(Role, role))
            for url, (name, role) in zip(urls, replicas, strict=True)
        ]

    @property
    def gpus(self) -> Sequence[int]:
        """Not known: they may be anywhere."""
        return ()

    def start(self) -> Sequence[ReplicaAddress]:
        for replica in reversed(self._replicas):
            try:
                self._model = _first_model(_ask(replica.url, "/v1/models"))
            except OSError as error:
                raise AgentschedError(
                    f"{replica.url} does not answer: {error}",
                    "start the engine, or correct live.urls",
                ) from None
        return self._replicas

    def reset(self, cell: str) -> Mapping[str, Any]:
        """Empty the prefix caches. One that cannot is named: its cells start warm."""
        warm = [replica.name for replica in self._replicas if not _reset(replica.url)]
        return {"cache_reset": "by call" if not warm else f"not possible on {', '.join(warm)}"}

    def facts(self) -> Mapping[str, Any]:
        return {"replicas": {r.name: r.url for r in self._replicas}, "started": False}

    def close(self) -> None:
        """They are not ours to stop."""


def _first_model(page: bytes) -> str:
    try:
        return str(json.loads(page)["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        return ""


def _reset(url: str) -> bool:
    for path in RESETS:
        try:
            _ask(url, path, post=True)
            return True
        except OSError:
            continue
    return False


def _ask(url: str, path: str, *, post: bool = False) -> bytes:
    """Raises OSError for no answer, or one that is an error."""
    request = urllib.request.Request(url + path, data=b"" if post else None)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        body: bytes = answer.read()
        return body
