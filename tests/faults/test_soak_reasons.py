"""A soak takes no reason for an answer that no fault explains."""

from __future__ import annotations

import pytest

from scripts._soak import UNKNOWN, reason_of


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            "the engine failed: the engine was silent for 4 s",
            "the engine failed: the engine was silent for 4 s (silent, stall, stopped)",
        ),
        (
            "the engine failed: cannot reach http://127.0.0.1:4711: Connection refused",
            "the engine failed: cannot reach a replica: Connection refused (killed, stopped)",
        ),
        ("the gateway is stopping", f"{UNKNOWN}the gateway is stopping"),
        ("the engine failed: the engine answered 503 too", None),
        ("", f"{UNKNOWN}nothing was said"),
        (None, f"{UNKNOWN}nothing was said"),
    ],
)
def test_reasons(error: str | None, said: str | None) -> None:
    found = reason_of(error)
    assert found == said if said is not None else found.startswith(UNKNOWN)
