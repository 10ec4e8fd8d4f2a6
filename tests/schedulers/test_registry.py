"""Settings by name: what is accepted, what is refused, and how the refusal reads."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import fields
from typing import Any

import pytest

from agentsched import UsageError
from schedulers.autellix import Autellix
from schedulers.registry import SHIPPED, configure, find
from schedulers.thunderagent import ThunderAgent


def test_settings_replace_defaults() -> None:
    config = configure(ThunderAgent, {"aging_s": 30, "decay": True})
    assert (config.aging_s, config.decay, config.interval_s) == (30, True, 5.0)


def test_a_list_serves_where_a_tuple_is_the_default() -> None:
    assert configure(Autellix, {"level_tokens": [1, 2]}).level_tokens == (1, 2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"agin_s": 1.0}, "no setting `agin_s`"),
        ({"aging_s": "soon"}, "setting `aging_s`"),
        ({"aging_s": None}, "setting `aging_s`"),
        ({"buffer_tokens": 1.5}, "setting `buffer_tokens`"),
        ({"decay": 1}, "setting `decay`"),
        ({"interval_s": 0.0}, "interval_s"),
        ({"acting_weight": -1.0}, "must not be negative"),
    ],
)
def test_wrong_settings_are_refused_with_the_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        configure(ThunderAgent, settings)
    assert "thunderagent" in str(caught.value)
    assert caught.value.remedy


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        find("thunder")
    assert "thunderagent" in caught.value.remedy


@pytest.mark.parametrize("name", SHIPPED)
def test_every_setting_states_the_source_of_its_default(name: str) -> None:
    config = find(name).Config
    inherited = {field.name for base in config.__mro__[1:-1] for field in fields(base)}
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(config))).body
    assert isinstance(body, ast.ClassDef)
    for statement, below in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            stated = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            assert stated or statement.target.id in inherited, statement.target.id
