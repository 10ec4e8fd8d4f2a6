"""Session identity: one golden case for each form that agents and routers send."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.live.identity import _FORMS, MAX_ID_CHARS, SOURCES, Identity, clean_id, identify

CLAUDE_USER = '{"device_id": "d", "account_uuid": "a", "session_id": "c-7"}'

FORMS: list[tuple[dict[str, str], dict[str, Any], Identity]] = [
    (
        {"x-agentsched-session": "a", "x-agentsched-parent": "p"},
        {},
        Identity("a", "p", "x-agentsched-session"),
    ),
    ({}, {"program_id": "a"}, Identity("a", None, "program_id")),
    ({}, {"program_id": 12}, Identity("12", None, "program_id")),
    ({}, {"extra_body": {"program_id": "a"}}, Identity("a", None, "extra_body.program_id")),
    (
        {},
        {"vllm_xargs": {"agentic_context": {"program_id": "a", "parent_program_id": "p"}}},
        Identity("a", "p", "vllm_xargs.agentic_context.program_id"),
    ),
    (
        {},
        {"vllm_xargs": {"agentic_context": '{"program_id": "a"}'}},
        Identity("a", None, "vllm_xargs.agentic_context.program_id"),
    ),
    ({"x-session-id": "trial__agent"}, {}, Identity("trial__agent", None, "x-session-id")),
    (
        {"x-dynamo-session-id": "a", "x-dynamo-parent-session-id": "p"},
        {},
        Identity("a", "p", "x-dynamo-session-id"),
    ),
    (
        {"x-dynamo-session-id": "a", "x-dynamo-session-final": "true"},
        {},
        Identity("a", None, "x-dynamo-session-id", final=True),
    ),
    ({"x-smg-routing-key": "a"}, {}, Identity("a", None, "x-smg-routing-key")),
    ({"x-claude-code-session-id": "c"}, {}, Identity("c", None, "x-claude-code-session-id")),
    (
        {"x-claude-code-session-id": "c", "x-claude-code-agent-id": "1"},
        {},
        Identity("c/1", "c", "x-claude-code-session-id"),
    ),
    (
        {
            "x-claude-code-session-id": "c",
            "x-claude-code-agent-id": "2",
            "x-claude-code-parent-agent-id": "1",
        },
        {},
        Identity("c/2", "c/1", "x-claude-code-session-id"),
    ),
    ({"session-id": "x"}, {}, Identity("x", None, "session-id")),
    ({"session-id": "x", "thread-id": "x"}, {}, Identity("x", None, "session-id")),
    ({"session-id": "x", "thread-id": "t"}, {}, Identity("x/t", "x", "session-id")),
    ({"session_id": "x"}, {}, Identity("x", None, "session-id")),
    ({}, {"session_params": {"session_id": "a"}}, Identity("a", None, "session_params.session_id")),
    ({}, {"session_id": "a"}, Identity("a", None, "session_id")),
    ({}, {"metadata": {"user_id": CLAUDE_USER}}, Identity("c-7", None, "metadata.user_id")),
]


@pytest.mark.parametrize(("headers", "body", "expected"), FORMS)
def test_each_form(headers: dict[str, str], body: dict[str, Any], expected: Identity) -> None:
    assert identify(headers, body) == expected


def test_every_form_has_a_case() -> None:
    assert {expected.source for _, _, expected in FORMS} == set(SOURCES)


def test_the_first_form_wins() -> None:
    """All forms at once: taking away the winner each time gives the documented order."""
    forms = {expected.source: (headers, body) for headers, body, expected in reversed(FORMS)}
    for position, source in enumerate(SOURCES):
        headers: dict[str, str] = {}
        body: dict[str, Any] = {}
        for later in SOURCES[position:]:
            headers |= forms[later][0]
            body |= forms[later][1]
        assert identify(headers, body).source == source


VALUES = st.one_of(
    st.sampled_from(["a", "", " b ", "{}", CLAUDE_USER, '{"program_id": "c"}']),
    st.integers(0, 3),
    st.none(),
)
NESTED = st.dictionaries(
    st.sampled_from(["program_id", "session_id", "user_id", "agentic_context"]), VALUES
)


@given(
    st.dictionaries(
        st.sampled_from(sorted({name for headers, _, _ in FORMS for name in headers})),
        st.sampled_from(["a", "b", "", " "]),
    ),
    st.dictionaries(
        st.sampled_from(sorted({name for _, body, _ in FORMS for name in body})),
        st.one_of(VALUES, NESTED),
    ),
)
def test_forms_that_are_passed_over_are_not_there(
    headers: dict[str, str], body: dict[str, Any]
) -> None:
    """As if every form were read."""
    final = headers.get("x-dynamo-session-final", "").strip() == "true"
    for source, _, read in _FORMS:
        session, parent = read(headers, body)
        if session is not None:
            assert identify(headers, body) == Identity(session, parent, source, final)
            return
    assert identify(headers, body) == Identity(None, final=final)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"user": "bob", "user_id": "bob"},
        {"metadata": {"user_id": "bob"}},
        {"metadata": {"user_id": "{broken"}},
        {"metadata": "text", "extra_body": [], "vllm_xargs": {"agentic_context": "no json"}},
        {"program_id": None, "session_id": True},
        {"program_id": "  "},
    ],
)
def test_people_and_nonsense_are_no_sessions(body: dict[str, Any]) -> None:
    assert identify({}, body) == Identity(None)


def test_ids_are_made_fit_for_headers() -> None:
    assert clean_id(" a b ") == "a b"
    for odd in ("a\r\nx-evil: 1", "Grüße", "x" * (MAX_ID_CHARS + 1)):
        cleaned = clean_id(odd)
        assert cleaned is not None
        assert cleaned.isascii()
        assert cleaned.isprintable()
        assert len(cleaned) <= MAX_ID_CHARS
        assert cleaned == clean_id(odd)  # the same id always gets the same name
