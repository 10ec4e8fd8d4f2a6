"""Which session a request belongs to: the names that agents and routers already send.

First match wins, in the order of `SOURCES`; our own header comes before all. `user` and `user_id`
name people, not sessions, and are not used. A request that names no session is matched by its
conversation (`harness.live.conversations`).

Sources: ThunderAgent (`program_id`), vLLM router (`vllm_xargs.agentic_context`, X-Session-ID),
Dynamo (`x-dynamo-session-id`, `x-dynamo-session-final`), SGLang gateway (`x-smg-routing-key`,
`session_params`), Claude Code, Codex and OpenCode, Harbor and mini-swe-agent (X-Session-ID).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

MAX_ID_CHARS = 200
"""Longer ids are replaced by a hash of them."""

Body = Mapping[str, Any]
RequestHeaders = Mapping[str, str]


class Identity(NamedTuple):
    """Who sends a request. `session` None: it does not say."""

    session: str | None
    parent: str | None = None
    source: str | None = None
    """The header or field that named the session."""
    final: bool = False
    """The session ends with this request."""


def identify(headers: RequestHeaders, body: Body) -> Identity:
    """Read the session off a request.

    Args:
        headers: by lower-case name.
        body: the decoded JSON object.
    """
    final = "x-dynamo-session-final" in headers and _is_true(headers["x-dynamo-session-final"])
    names = {*headers, *body}
    for source, signs, form in _FORMS:
        if signs.isdisjoint(names):  # nearly always
            continue
        session, parent = form(headers, body)
        if session is not None:
            return Identity(session, parent, source, final)
    return Identity(None, None, None, final)


def clean_id(value: Any) -> str | None:
    """An id fit for headers and logs; None if there is none."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    text = str(value).strip()
    if not text:
        return None
    if len(text) > MAX_ID_CHARS or not text.isascii() or not text.isprintable():
        return f"id-{blake2b(text.encode('utf-8', 'replace'), digest_size=16).hexdigest()}"
    return text


_Found = tuple[str | None, str | None]
_Form = Callable[[RequestHeaders, Body], _Found]


def _is_true(value: str) -> bool:
    return value.strip().lower() in ("1", "true", "yes")


_Named = tuple[str, frozenset[str], _Form]
"""A form's source, the headers and top-level fields without any of which it is not there, and how
to read it."""


def _header(name: str, parent: str | None = None) -> _Named:
    def read(headers: RequestHeaders, body: Body) -> _Found:
        above = clean_id(headers[parent]) if parent is not None and parent in headers else None
        return clean_id(headers.get(name)), above

    return name, frozenset({name}), read


def _field(*path: str) -> _Named:
    def read(headers: RequestHeaders, body: Body) -> _Found:
        return clean_id(_at(body, path)), None

    return ".".join(path), frozenset({path[0]}), read


def _at(body: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(body, Mapping):
            return None
        body = body.get(name)
    return body


def _agentic_context(headers: RequestHeaders, body: Body) -> _Found:
    context = _at(body, ("vllm_xargs", "agentic_context"))
    if isinstance(context, str):  # extra arguments of vLLM are flat; some clients send JSON text
        context = _json_object(context)
    if not isinstance(context, Mapping):
        return None, None
    return clean_id(context.get("program_id")), clean_id(context.get("parent_program_id"))


def _claude_code(headers: RequestHeaders, body: Body) -> _Found:
    """Sub-agents share the session id and add their own; each is a session under it."""
    session = clean_id(headers.get("x-claude-code-session-id"))
    if session is None:
        return None, None
    agent = clean_id(headers.get("x-claude-code-agent-id"))
    if agent is None:
        return session, None
    above = clean_id(headers.get("x-claude-code-parent-agent-id"))
    return f"{session}/{agent}", session if above is None else f"{session}/{above}"


def _codex(headers: RequestHeaders, body: Body) -> _Found:
    session = clean_id(headers.get("session-id") or headers.get("session_id"))
    thread = clean_id(headers.get("thread-id") or headers.get("thread_id"))
    if session is None or thread is None or thread == session:
        return session or thread, None
    return f"{session}/{thread}", session


def _claude_metadata(headers: RequestHeaders, body: Body) -> _Found:
    """Claude Code puts JSON with its session id where the API wants a user."""
    user = _at(body, ("metadata", "user_id"))
    found = _json_object(user) if isinstance(user, str) else {}
    return clean_id(found.get("session_id")), None


def _json_object(text: str) -> Mapping[str, Any]:
    if not text.lstrip().startswith("{"):
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


_FORMS: tuple[_Named, ...] = (
    _header("x-agentsched-session", "x-agentsched-parent"),
    _field("program_id"),
    _field("extra_body", "program_id"),
    ("vllm_xargs.agentic_context.program_id", frozenset({"vllm_xargs"}), _agentic_context),
    _header("x-session-id", "x-parent-session-id"),
    _header("x-dynamo-session-id", "x-dynamo-parent-session-id"),
    _header("x-smg-routing-key"),
    ("x-claude-code-session-id", frozenset({"x-claude-code-session-id"}), _claude_code),
    ("session-id", frozenset({"session-id", "session_id", "thread-id", "thread_id"}), _codex),
    _field("session_params", "session_id"),
    _field("session_id"),
    ("metadata.user_id", frozenset({"metadata"}), _claude_metadata),
)

SOURCES = tuple(source for source, _, _ in _FORMS)
"""The forms in the order they are tried."""
