"""Schedulers by name: the shipped ones, installed packages' (entry points), and a user's file."""

from __future__ import annotations

import dataclasses
import importlib.util
import random
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from agentsched import UsageError
from schedulers.base import Scheduler

ENTRY_POINT_GROUP = "agentsched.schedulers"

SHIPPED: dict[str, str] = {
    "round-robin": "schedulers.round_robin:RoundRobin",
    "cache-aware": "schedulers.cache_aware:CacheAware",
    "smetric": "schedulers.smetric:SMetric",
    "smetric-slo": "schedulers.smetric_slo:SMetricSlo",
    "thunderagent": "schedulers.thunderagent:ThunderAgent",
    "thunderagent-decay": "schedulers.thunderagent_decay:ThunderAgentDecay",
    "thunderagent-as-shipped": "schedulers.thunderagent_as_shipped:ThunderAgentAsShipped",
    "tao": "schedulers.tao:Tao",
    "tao-no-cache": "schedulers.tao_ablations:TaoNoCache",
    "tao-no-decay": "schedulers.tao_ablations:TaoNoDecay",
    "tao-no-readiness": "schedulers.tao_ablations:TaoNoReadiness",
    "tao-thunder-order": "schedulers.tao_ablations:TaoThunderOrder",
    "tao-bfd": "schedulers.tao_ablations:TaoBfd",
    "tao-decomposed": "schedulers.tao_decomposed:TaoDecomposed",
    "oracle-tools": "schedulers.tao_ablations:OracleTools",
    "lmetric": "schedulers.lmetric:LMetric",
    "least-loaded": "schedulers.least_loaded:LeastLoaded",
    "session-affinity": "schedulers.session_affinity:SessionAffinity",
    "sticky": "schedulers.sticky:Sticky",
    "power-of-two": "schedulers.power_of_two:PowerOfTwo",
    "random": "schedulers.random_choice:RandomChoice",
    "consistent-hash": "schedulers.consistent_hash:ConsistentHash",
    "prefix-hash": "schedulers.prefix_hash:PrefixHash",
    "dynamo": "schedulers.dynamo:Dynamo",
    "dynamo-thunderagent": "schedulers.dynamo_thunderagent:DynamoThunderAgent",
    "llm-d": "schedulers.llm_d:LlmD",
    "aibrix": "schedulers.aibrix:AIBrix",
    "continuum": "schedulers.continuum:Continuum",
    "autellix": "schedulers.autellix:Autellix",
    "mars": "schedulers.mars:Mars",
    "conserve": "schedulers.conserve:ConServe",
    "ampd": "schedulers.ampd:Ampd",
    "collocated": "schedulers.collocated:Collocated",
    "disaggregated": "schedulers.disaggregated:Disaggregated",
    "headroom": "schedulers.headroom:Headroom",
}


def names() -> list[str]:
    """All names that can be asked for without a file, shipped ones first."""
    return [*SHIPPED, *(point.name for point in _installed() if point.name not in SHIPPED)]


def find(name: str) -> type[Scheduler]:
    """The scheduler class for a name, or for `path/to/file.py:Class`.

    Raises:
        UsageError: unknown name, unreadable file, or not a Scheduler.
    """
    if name in SHIPPED:
        return _load_attribute(SHIPPED[name])
    if ".py:" in name or name.endswith(".py"):
        return _from_file(name)
    for point in _installed():
        if point.name == name:
            return _checked(point.load(), name)
    raise UsageError(
        f"unknown scheduler `{name}`",
        f"one of: {', '.join(names())}; or your own as file.py:Class",
    )


def create(name: str, settings: Mapping[str, Any] | None = None, seed: int = 0) -> Scheduler:
    """A fresh scheduler with its settings applied.

    Raises:
        UsageError: as `find`, or a setting the scheduler does not have.
    """
    cls = find(name)
    return cls(configure(cls, settings or {}), random.Random(f"{seed}/{cls.name}"))


def configure(cls: type[Scheduler], settings: Mapping[str, Any]) -> Any:
    """The scheduler's Config with `settings` in place of defaults.

    Raises:
        UsageError: unknown setting, wrong type, or a value its Config refuses.
    """
    fields = {field.name: field for field in dataclasses.fields(cls.Config)}
    given = dict(settings)
    for key, value in settings.items():
        if key not in fields:
            raise UsageError(
                f"scheduler `{cls.name}` has no setting `{key}`",
                f"its settings: {', '.join(fields) or 'none'}",
            )
        default = fields[key].default
        if isinstance(default, float) and type(value) is int:
            continue
        if isinstance(default, tuple) and isinstance(value, list):
            given[key] = tuple(value)
            continue
        free_form = default is dataclasses.MISSING or default is None
        if not free_form and type(value) is not type(default):
            raise UsageError(
                f"setting `{key}` of scheduler `{cls.name}` is {value!r}",
                f"give a {type(default).__name__}, like the default {default!r}",
            )
    try:
        return cls.Config(**given)
    except ValueError as error:
        raise UsageError(
            f"scheduler `{cls.name}`: {error}", "see `agentsched list schedulers` for its settings"
        ) from None


def _installed() -> list[Any]:
    return list(entry_points(group=ENTRY_POINT_GROUP))


def _load_attribute(target: str) -> type[Scheduler]:
    module, _, attribute = target.partition(":")
    return _checked(getattr(import_module(module), attribute), target)


def _from_file(name: str) -> type[Scheduler]:
    path_text, _, attribute = name.rpartition(":")
    path = Path(path_text)
    if not path_text or not attribute:
        raise UsageError(f"`{name}` does not name a class", "write it as file.py:Class")
    if not path.is_file():
        raise UsageError(f"no scheduler file {path}", "check the path in --scheduler file.py:Class")
    module_name = f"agentsched_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses in the file look their module up by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        # A user's file may raise anything while it is loaded.
        raise UsageError(
            f"scheduler file {path} failed to load: {type(error).__name__}: {error}",
            "run `python " + str(path) + "` to see where",
        ) from error
    if not hasattr(module, attribute):
        raise UsageError(f"{path} has no class `{attribute}`", "check the name after the colon")
    return _checked(getattr(module, attribute), name)


def _checked(found: Any, name: str) -> type[Scheduler]:
    if not (isinstance(found, type) and issubclass(found, Scheduler)):
        raise UsageError(
            f"`{name}` is not a scheduler class",
            "subclass agentsched.RoutingScheduler or agentsched.AdmissionScheduler",
        )
    for attribute in ("name", "info"):
        if not hasattr(found, attribute):
            raise UsageError(
                f"scheduler class `{name}` has no `{attribute}`",
                "set `name` and `info` as CONTRIBUTING.md shows",
            )
    if not (isinstance(found.name, str) and found.name and found.name.isprintable()):
        raise UsageError(
            f"scheduler class `{name}` has the name {found.name!r}", "give it a name that is text"
        )
    return found
