"""mini-swe-agent trajectories (`ID.traj.json`; mini-swe-agent 1 and 2, MIT).

Input: one JSON object a session: info, messages[] {role, content, extra}, trajectory_format. A
reply's `extra` holds its actions, the whole response with its usage, and the time it came; a
result's `extra` the time it ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from agentsched import TraceError
from workloads.model import Session, ToolCall
from workloads.readers.chain import Call, CommonStart, turns_of
from workloads.readers.documents import (
    command_name,
    find_files,
    moment,
    part,
    parts,
    read_document,
    session_names,
    stated_sleep,
    text_of,
)
from workloads.trace_fields import MAX_TOKENS, Fields

SUFFIX = ".traj.json"


@dataclass(frozen=True, slots=True)
class MiniSettings:
    """How a trajectory without usage is read. Our choice."""

    bytes_per_token: float = 4.0
    """Where a reply's response has no usage, tokens are counted from the texts."""


@dataclass(frozen=True, slots=True)
class _Reply:
    """A message that the model was called for; sizes of its text in bytes."""

    fields: Fields
    after: Sequence[Fields]
    """The messages up to the next one."""
    prompt_bytes: int
    new_bytes: int


def read_mini_swe_agent(path: Path, settings: MiniSettings | None = None) -> Iterator[Session]:
    """One session for each trajectory of a file or folder, in order of their paths.

    Tool time is what passes from a reply to the last of its results; the commands of a reply run
    one after another and share it evenly (the trajectory has one time for them all). A reply that
    could not be parsed is a turn without tools. Where the first messages of two trajectories start
    alike, that start is shared. Trajectories without a reply (agents that failed at once) are left
    out.

    Raises:
        TraceError: a file is no trajectory (names file and field), or none has a reply.
    """
    choice = settings or MiniSettings()
    start = CommonStart("mini-swe-agent/template")
    files = find_files(path, f"*{SUFFIX}")
    found = False
    for file, name in session_names(path, files, SUFFIX):
        messages = parts(read_document(file), "messages")
        replies = _replies(messages)
        if not replies:
            continue
        found = True
        calls = _calls(replies, choice)
        opening = b"".join(map(_text, messages[: messages.index(replies[0].fields)]))
        yield Session(
            id=f"mini-swe-agent-{name}",
            turns=turns_of(calls, start.share(opening, calls[0].prompt)),
            workload="mini-swe-agent",
            origin="recorded",
        )
    if not found:
        raise TraceError("the model was never called", "name other trajectories", file=path)


def _replies(messages: Sequence[Fields]) -> list[_Reply]:
    found: list[_Reply] = []
    places = [index for index, message in enumerate(messages) if _was_called(message)]
    size = new = 0
    for index, message in enumerate(messages):
        if index in places[len(found) : len(found) + 1]:
            upto = places[len(found) + 1] if len(found) + 1 < len(places) else len(messages)
            found.append(_Reply(message, messages[index + 1 : upto], size, new))
            new = -len(_text(message)) if _is_reply(message) else 0
        size += len(_text(message))
        new += len(_text(message))
    return found


def _was_called(message: Fields) -> bool:
    """Replies, and the complaints that stand in the place of replies that could not be parsed."""
    if _is_reply(message):
        return True
    extra = part(message, "extra")
    return extra.get("interrupt_type") == "FormatError" and isinstance(extra.get("response"), dict)


def _is_reply(message: Fields) -> bool:
    return bool(message.get("role") == "assistant" or message.get("object") == "response")


def _calls(replies: Sequence[_Reply], choice: MiniSettings) -> list[Call]:
    counted = all(_usage(reply) is not None for reply in replies)
    return [
        _call(reply, _usage(reply) if counted else None, index + 1 == len(replies), choice)
        for index, reply in enumerate(replies)
    ]


def _call(
    reply: _Reply, usage: tuple[int, int, int] | None, last: bool, choice: MiniSettings
) -> Call:
    if usage is None:
        tokens = round(reply.prompt_bytes / choice.bytes_per_token)
        made = round(len(_text(reply.fields)) / choice.bytes_per_token)
        usage = (tokens, 0, made)
    prompt, cached, output = usage
    return Call(
        prompt=max(1, prompt),
        output=max(1, output),
        cached=min(cached, prompt),
        tools=() if last else _tools(reply),
        new_bytes=reply.new_bytes,
        reply_lost=not _is_reply(reply.fields),
    )


def _tools(reply: _Reply) -> tuple[ToolCall, ...]:
    commands = [action.get("command") for action in parts(part(reply.fields, "extra"), "actions")]
    texts = [text for text in commands if isinstance(text, str)]
    began = moment(part(reply.fields, "extra"), "timestamp")
    ends = [moment(part(message, "extra"), "timestamp") for message in reply.after]
    ended = max((end for end in ends if end is not None), default=began)
    if not texts or began is None or ended is None:
        return ()
    each = round(max(0.0, ended - began) / len(texts), 6)
    return tuple(ToolCall(command_name(text), each, stated_sleep(text)) for text in texts)


def _usage(reply: _Reply) -> tuple[int, int, int] | None:
    """Prompt, cached and output tokens, as chat completions or the responses API name them."""
    message = reply.fields
    response = message if message.get("object") == "response" else None
    usage = part(response or part(part(message, "extra"), "response"), "usage")
    prompt = _either(usage, "prompt_tokens", "input_tokens")
    output = _either(usage, "completion_tokens", "output_tokens")
    if not prompt or output is None:
        return None
    details = part(usage, "prompt_tokens_details"), part(usage, "input_tokens_details")
    cached = [_either(each, "cached_tokens", "cached_tokens") or 0 for each in details]
    return prompt, max(cached), output


def _either(fields: Fields, one: str, other: str) -> int | None:
    found = fields.whole(one, default=None, high=MAX_TOKENS)
    return found if found is not None else fields.whole(other, default=None, high=MAX_TOKENS)


def _text(message: Fields) -> bytes:
    """The text of a message, with the calls it makes."""
    text = text_of(message.get("content") or message.get("output")).encode("utf-8", "replace")
    calls = message.get("tool_calls")
    return text + (orjson.dumps(calls) if calls else b"")
