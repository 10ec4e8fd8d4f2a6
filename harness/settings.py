"""Settings dataclasses from the plain values of a specification, checked field by field."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from harness.spec import CORRECT, RunSpec, wanted
from harness.specfile import ValuePath, closest

T = TypeVar("T")


def settings_from(spec: RunSpec, path: ValuePath, kind: type[T], values: Mapping[str, Any]) -> T:
    """A settings dataclass with `values` in place of defaults; they may hold lists of others.

    Raises:
        UsageError: unknown field, wrong type, or a value the dataclass refuses; names its place.
    """
    try:
        # By way of JSON, because only there does strict checking take lists for tuples.
        built = TypeAdapter(kind).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = (*path, *problem["loc"])
        remedy = CORRECT
        if problem["type"] == "value_error":
            message = problem["msg"].removeprefix("Value error, ")
        elif problem["type"] == "missing":
            message, remedy = f"the field `{where[-1]}` is missing", "add it"
        else:
            given = json.dumps(problem["input"])[:60]
            message = f"`{where[-1]}` cannot be {given}: it must be {wanted(problem)}"
        raise spec.error(where, message, remedy) from None
    stranger = _first_unknown(values, dataclasses.asdict(built), path)  # type: ignore[call-overload]
    if stranger is not None:
        guess = closest(str(stranger.path[-1]), stranger.known)
        hint = f"did you mean `{guess}`? " if guess else ""
        raise spec.error(
            stranger.path,
            f"unknown field `{stranger.path[-1]}`",
            f"{hint}known fields: {', '.join(stranger.known)}",
        )
    return built


class _Unknown(NamedTuple):
    path: ValuePath
    known: list[str]


def _first_unknown(given: Any, built: Any, path: ValuePath) -> _Unknown | None:
    """The first key given that the built settings do not have; pydantic lets such keys pass."""
    pairs: list[tuple[Any, Any, str | int]] = []
    if isinstance(given, Mapping) and isinstance(built, dict):
        for key, value in given.items():
            if key not in built:
                return _Unknown((*path, key), list(built))
            pairs.append((value, built[key], key))
    elif isinstance(given, list):
        pairs = [(a, b, i) for i, (a, b) in enumerate(zip(given, built, strict=False))]
    for value, result, key in pairs:
        found = _first_unknown(value, result, (*path, key))
        if found is not None:
            return found
    return None
