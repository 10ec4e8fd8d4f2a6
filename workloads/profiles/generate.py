"""Sessions of a profile, by name and seed."""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Protocol

import numpy as np

from agentsched import UsageError
from workloads.model import Session
from workloads.profiles.automationbench import AutomationBench
from workloads.profiles.bailian import BailianAgent, BailianChat
from workloads.profiles.chat import AzureChat, AzureCode, MooncakeChat
from workloads.profiles.claude_code import InteractiveClaudeCode, SweBenchClaudeCode
from workloads.profiles.mixed import Mixed
from workloads.profiles.swe_bench import SweBenchMini, SweBenchMiniShort
from workloads.profiles.terminal_bench import TerminalClaudeCode, Terminus2
from workloads.stats import share_over


class Profile(Protocol):
    """A generator: a frozen dataclass whose fields are its parameters."""

    name: ClassVar[str]
    source: ClassVar[str]
    note: ClassVar[str]
    default_sessions: ClassVar[int]

    def session(self, rng: np.random.Generator, session_id: str) -> Session:
        """One session; all randomness comes from `rng`."""
        ...


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a profile, and where its value comes from."""

    name: str
    value: object
    source: str


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        SweBenchMiniShort(),
        SweBenchMini(),
        SweBenchClaudeCode(),
        Terminus2(),
        TerminalClaudeCode(),
        AutomationBench(),
        InteractiveClaudeCode(),
        BailianAgent(),
        BailianChat(),
        AzureChat(),
        AzureCode(),
        MooncakeChat(),
        Mixed(),
    )
}


def generate(
    profile_name: str,
    *,
    sessions: int,
    seed: int = 0,
    settings: Mapping[str, object] | None = None,
) -> list[Session]:
    """Sessions of a profile. Session i of a seed is the same however many are asked for.

    Args:
        profile_name: a name in PROFILES.
        sessions: how many.
        seed: 0 or more.
        settings: parameters to change, by field name.

    Raises:
        UsageError: unknown profile or parameter, or a value that does not fit.
    """
    profile = _profile(profile_name, settings or {})
    if sessions < 1 or seed < 0:
        raise UsageError(
            f"{sessions} sessions with seed {seed}", "ask for 1 session or more, seed 0 or more"
        )
    label = zlib.crc32(profile_name.encode())
    result: list[Session] = []
    for index in range(sessions):
        rng = np.random.default_rng(np.random.SeedSequence([seed, label, index]))
        result.append(profile.session(rng, f"{profile_name}-{seed}-{index}"))
    return result


def parameters(profile_name: str) -> list[Parameter]:
    """Every parameter of a profile with its value and the source stated beneath it.

    Raises:
        UsageError: unknown profile.
    """
    profile = _profile(profile_name, {})
    notes: dict[str, str] = {}
    for base in reversed(type(profile).__mro__[:-1]):
        notes |= _notes(base)
    return [
        Parameter(field.name, getattr(profile, field.name), notes[field.name])
        for field in fields(profile)  # type: ignore[arg-type]
    ]


def context_sensitivity(limit: int, *, sessions: int = 2000, seed: int = 0) -> dict[str, float]:
    """Share of sessions that pass a context limit, for both SWE-bench variants.

    Args:
        limit: tokens, such as a model's longest context.
    """
    return {
        name: share_over(generate(name, sessions=sessions, seed=seed), limit)
        for name in ("swe-bench-mini", "swe-bench-mini-short")
    }


def _profile(name: str, settings: Mapping[str, object]) -> Profile:
    if name not in PROFILES:
        raise UsageError(f"unknown profile {name!r}", f"use one of: {', '.join(PROFILES)}")
    profile = PROFILES[name]
    known = {field.name: getattr(profile, field.name) for field in fields(profile)}  # type: ignore[arg-type]
    changed = {key: _value(name, key, value, known) for key, value in settings.items()}
    return replace(profile, **changed) if changed else profile  # type: ignore[type-var]


def _value(name: str, key: str, value: object, known: Mapping[str, object]) -> object:
    if key not in known:
        raise UsageError(f"profile {name!r} has no setting {key!r}", f"it has: {', '.join(known)}")
    wanted = type(known[key])
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not wanted or (isinstance(value, float) and not math.isfinite(value)):
        raise UsageError(
            f"setting {key!r} of {name!r} cannot be {value!r}", f"give a {wanted.__name__}"
        )
    if isinstance(value, int | float) and value < 0 and not key.endswith("_mu"):
        raise UsageError(f"setting {key!r} of {name!r} is negative", "give 0 or more")
    return value


def _notes(cls: type) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    if not isinstance(body, ast.ClassDef):
        return {}
    notes: dict[str, str] = {}
    for entry, below in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(entry, ast.AnnAssign)
            and isinstance(entry.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            notes[entry.target.id] = " ".join(str(below.value.value).split())
    return notes
