"""The fault matrix in the documentation is the one of the tests."""

from __future__ import annotations

from tests.faults.page import PAGE, with_matrix


def test_the_page_is_current() -> None:
    page = PAGE.read_text("utf-8")
    assert with_matrix(page) == page, "python -m tests.faults.page"
