"""What settings there are: name, default, and the text written under each field."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """One field of a settings dataclass."""

    name: str
    default: str
    about: str


def settings_of(config: type[Any]) -> list[Setting]:
    """The fields of a settings dataclass in order, inherited ones first."""
    about: dict[str, str] = {}
    for cls in reversed(config.__mro__):
        if dataclasses.is_dataclass(cls):
            about.update(_texts_below_fields(cls))
    return [
        Setting(field.name, _default(field), about.get(field.name, ""))
        for field in dataclasses.fields(config)
    ]


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return str(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return str(field.default_factory())
    return "required"


def _texts_below_fields(cls: type[Any]) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):  # defined where there is no source to read
        return {}
    definition = tree.body[0]
    assert isinstance(definition, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            texts[field.target.id] = " ".join(below.value.value.split())
    return texts
