"""How a session's name gets to a router."""

from __future__ import annotations

import json

import pytest

from harness.live.routers.naming import SessionName, with_field
from harness.live.wire import Request

BODY = b'{"model": "m", "messages": []}'


def named(name: SessionName, headers: dict[str, str], body: bytes = BODY) -> Request:
    return name.put_on(Request("POST", "/v1/chat/completions", headers, body))


def test_a_header_is_added_from_any_name_that_agents_send() -> None:
    for headers in ({"x-agentsched-session": "s"}, {"x-claude-code-session-id": "s"}):
        request = named(SessionName(header="x-smg-routing-key"), headers)
        assert request.headers == {**headers, "x-smg-routing-key": "s"}
        assert request.body is BODY


def test_a_name_in_the_body_is_found() -> None:
    body = b'{"program_id": "p", "messages": []}'
    request = named(SessionName(header="x-session-id"), {}, body)
    assert request.headers == {"x-session-id": "p"}
    assert named(SessionName(field="program_id"), {}, body).body == body


def test_what_the_router_would_see_anyway_is_left_alone() -> None:
    request = named(SessionName(header="x-session-id"), {"x-session-id": "s"})
    assert request.headers == {"x-session-id": "s"}


def test_a_field_is_added_without_touching_the_rest() -> None:
    request = named(SessionName(field="program_id"), {"x-session-id": 's"1'})
    assert request.body == b'{"program_id":"s\\"1","model": "m", "messages": []}'
    assert json.loads(request.body)["program_id"] == 's"1'


@pytest.mark.parametrize(
    ("body", "expected"),
    [(b"{}", b'{"f":"v"}'), (b" { }", b'{"f":"v"}'), (b"[1]", b"[1]"), (b"", b"")],
)
def test_bodies_of_other_forms(body: bytes, expected: bytes) -> None:
    assert with_field(body, "f", "v") == expected


def test_a_request_without_a_session_stays_as_it_is() -> None:
    request = Request("POST", "/v1/completions", {"accept": "*/*"}, BODY)
    assert SessionName(header="x-session-id", field="program_id").put_on(request) is request
