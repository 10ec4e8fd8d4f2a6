"""Turn and session records of agents, from what the gateway's driver and the clients tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from harness.live.agents.records import TurnBook
from harness.live.turns import LiveTurn
from schedulers.types import PromptRef, ToolSignal, Turn, Usage
from tests.agents.stage import Records

BASH = (ToolSignal("bash", "ls"),)


@dataclass
class Book:
    """A book with its records; times in milliseconds."""

    book: TurnBook
    records: Records

    def turn(
        self,
        session: str,
        arrived: int,
        ended: int,
        *,
        tools: tuple[ToolSignal, ...] = (),
        status: str = "ok",
        parent: str | None = None,
        replica: str = "r0",
        held_ms: int = 0,
    ) -> None:
        """A turn comes and goes at the gateway."""
        prompt = PromptRef((), 0)
        live = LiveTurn(Turn("t", session, 0, prompt, parent), cast(Any, None), arrived * MS)
        live.dispatched, live.replica, live.attempts = (arrived + held_ms) * MS, replica, 1
        live.first_token = (arrived + held_ms + 1) * MS
        usage = Usage(100, 40, 7) if status == "ok" else None
        self.book.turn_ended(live, usage, status, ended * MS)
        if tools:
            self.book.tools_started(session, tools, ended * MS)


MS = 1_000_000


@pytest.fixture
def made() -> Book:
    records = Records()
    book = TurnBook("w")
    book.open(records)
    return Book(book, records)


def test_tools_as_reported_overlapping_or_not(made: Book) -> None:
    """Answer ends at 20; tools run 30-60, 50-80 and 90-95; the next request comes at 100.

    Busy are 30-80 and 90-95: 55 ms of a gap of 80; 25 are other waiting.
    """
    book = made.book
    book.assigned("s", 5 * MS)
    made.turn("s", 10, 20, tools=BASH)
    for name, start, end in (("a", 30, 60), ("b", 50, 80), ("a", 90, 95)):
        book.tool_started("s", name, start * MS)
        if name == "b":
            book.tool_ended("s", "a", 60 * MS)
        if end == 80:
            book.tool_ended("s", "b", 80 * MS)
    book.tool_ended("s", "a", 95 * MS)
    assert made.records.turns == [], "a turn is recorded when its tools are known"
    made.turn("s", 100, 120, replica="r1", held_ms=3)
    book.ended("s", "finished", None, 130 * MS)
    first, second = made.records.turns
    assert (first.tool_s, first.wait_s, first.visible, first.last) == (0.055, 0.025, False, False)
    assert (first.tool_end, second.tool_end) == (None, 95 * MS)
    assert (second.last, second.visible, second.moved, second.held) == (True, True, True, True)
    assert (first.held, first.moved, first.cached_tokens) == (False, False, 40)
    [session] = made.records.sessions
    assert (session.started, session.finished) == (5 * MS, 130 * MS)
    assert (session.turns_done, session.turns_total) == (2, 2)


def test_without_reports_the_gateways_view_counts(made: Book) -> None:
    made.book.assigned("s", 0)
    made.turn("s", 10, 20, tools=BASH)
    made.turn("s", 50, 60)
    made.turn("s", 90, 95)
    made.book.ended("s", "finished", None, 100 * MS)
    first, second, third = made.records.turns
    assert (first.tool_s, first.wait_s, second.tool_end) == (0.03, 0.0, 50 * MS)
    assert (second.tool_s, second.wait_s, third.tool_end) == (0.0, 0.03, None)


def test_a_tool_without_an_end_lasts_until_the_next_request(made: Book) -> None:
    made.book.assigned("s", 0)
    made.turn("s", 10, 20, tools=BASH)
    made.book.tool_started("s", "bash", 25 * MS)
    made.turn("s", 50, 60)
    made.book.close()
    assert made.records.turns[0].tool_s == 0.025


def test_sub_agents_end_with_their_session(made: Book) -> None:
    book = made.book
    book.assigned("s", 0)
    made.turn("s", 10, 20, tools=BASH)
    made.turn("s/a", 30, 40, parent="s")
    made.turn("s/b", 32, 44, parent="s", status="failed")
    book.session_closed("s/a", "final", 46 * MS)
    made.turn("s", 50, 60)
    assert book.ended("s", "failed", "it broke", 70 * MS) == ["s/b"]
    sessions = {record.session: record for record in made.records.sessions}
    assert {name: record.parent for name, record in sessions.items()} == {
        "s": None,
        "s/a": "s",
        "s/b": "s",
    }
    assert (sessions["s/a"].started, sessions["s/a"].finished) == (30 * MS, 40 * MS)
    assert (sessions["s/b"].turns_done, sessions["s/b"].turns_total) == (0, 1)
    assert sessions["s"].error == "it broke"


def test_a_turn_that_breaks_off_after_its_session_is_recorded_until_the_end(made: Book) -> None:
    book = made.book
    book.assigned("s", 0)
    made.turn("s", 10, 20, tools=BASH)
    book.ended("s", "deadline", "stopped", 30 * MS)
    assert book.unclosed == 1
    made.turn("s", 25, 31, status="client_gone")
    book.session_closed("s", "released", 32 * MS)
    assert book.unclosed == 0
    book.close()
    made.turn("s", 33, 34)
    assert [turn.status for turn in made.records.turns] == ["ok", "client_gone"]
    assert [turn.turn for turn in made.records.turns] == [0, 1]
    [session] = made.records.sessions
    assert session.status == "deadline"


def test_times_are_the_cells_and_a_routers_replicas_are_not_known() -> None:
    records, book = Records(), TurnBook("w")
    book.open(records, shift=1000 * MS, replicas=False)
    made = Book(book, records)
    book.assigned("s", 1000 * MS)
    made.turn("s", 10, 20)
    book.close()
    [turn] = records.turns
    assert (turn.arrived, turn.finished) == (1010 * MS, 1020 * MS)
    assert (turn.dispatched, turn.first_token) == (1010 * MS, 1011 * MS)
    assert turn.replica is None
