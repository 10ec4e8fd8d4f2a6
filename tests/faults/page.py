"""The fault matrix of docs/faults.md, from the tests that rehearse each fault.

python -m tests.faults.page          writes the table into the page
python -m tests.faults.page --check  exit status 1 if the page is not current
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from tests.faults import matrix as found

PAGE = Path(__file__).parents[2] / "docs/faults.md"
BEGIN, END = "<!-- fault matrix: begin -->\n", "<!-- fault matrix: end -->\n"
MODULES = ("test_engines", "test_clients", "test_network", "test_simulated")


def matrix() -> str:
    """The table, in the order of the modules and of the tests in them."""
    for module in MODULES:
        import_module(f"tests.faults.{module}")
    order = {f"tests.faults.{name}": place for place, name in enumerate(MODULES)}
    found.ROWS.sort(key=lambda row: order[row.module])
    return found.table()


def with_matrix(page: str) -> str:
    """The page with the current table in it."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + matrix() + END + tail


def main() -> None:
    page = PAGE.read_text("utf-8")
    current = with_matrix(page)
    if "--check" in sys.argv[1:]:
        sys.exit(0 if current == page else "docs/faults.md is old: python -m tests.faults.page")
    PAGE.write_text(current, "utf-8")


if __name__ == "__main__":
    main()
