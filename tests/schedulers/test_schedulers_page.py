"""The table in docs/schedulers.md says what the classes say."""

from __future__ import annotations

from pathlib import Path

import pytest

from schedulers.registry import SHIPPED, find

PAGE = Path(__file__).parents[2] / "docs" / "schedulers.md"


@pytest.mark.parametrize("name", SHIPPED)
def test_table_row(name: str) -> None:
    info = find(name).info
    cells = [
        f"`{name}`",
        info.family,
        info.observes,
        "yes" if info.holds else "no",
        info.fidelity,
        info.reference,
    ]
    assert f"| {' | '.join(cells)} |" in PAGE.read_text().splitlines()
