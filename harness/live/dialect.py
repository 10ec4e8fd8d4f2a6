"""What the gateway needs of an API: how to read a request, and what comes back for it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import orjson

from agentsched import AgentschedError
from harness.live.texts import Piece
from harness.live.tool_signals import ToolCallParts
from harness.live.wire import Headers
from schedulers.types import Usage

JSON_TYPE = ("content-type", "application/json")
EVENT_STREAM = "text/event-stream"

REFUSED_FIELDS = frozenset(
    {
        "kv_transfer_params",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "data_parallel_rank",
        "lora_path",
        "agentsched",
    }
)
"""Request fields that could reach past the gateway to other machines: dropped, and set by the
gateway alone. vLLM reads peers from `kv_transfer_params`, SGLang from the bootstrap fields."""

URL_PARTS = frozenset(
    {
        "image_url",
        "video_url",
        "audio_url",
        "input_image",
        "input_file",
        "file",
        "image",
        "document",
    }
)
"""Content parts by which an engine is told to fetch an address or file."""


class RequestError(AgentschedError):
    """A request cannot be served; the client is told so in its dialect."""

    def __init__(self, status: int, message: str, remedy: str = "correct the request") -> None:
        super().__init__(message, remedy)
        self.status = status


@dataclass(slots=True)
class Reading:
    """A request as the gateway understands it."""

    body: dict[str, Any]
    raw: bytes
    stream: bool
    pieces: list[Piece]
    replies: list[str]
    """Texts of the model's earlier answers in the prompt."""


@dataclass(slots=True)
class Reply(ABC):
    """One answer as it streams in from an engine.

    `take` is given every event of the stream and returns what a streaming client gets for it;
    `whole` gives what a client gets that does not stream.
    """

    began: bool = False
    """A token of any kind has come."""
    tokens: int = 0
    """Tokens seen so far, counted as events with any (engines may put several into one)."""
    usage: Usage | None = None
    ending: bool = False
    """A choice has its last token: what is left of the stream is expected at once."""
    complete: bool = False
    """The stream said itself that it is at its end."""
    failure: str | None = None
    """The engine reported an error inside the stream."""
    broken: int = 0
    """Events whose data was no JSON object."""
    texts: list[str] = field(default_factory=list)
    calls: dict[Any, ToolCallParts] = field(default_factory=dict)

    @abstractmethod
    def take(self, event: bytes) -> bytes: ...

    def take_plain(self, part: bytes) -> bool:
        """As `take`, for a part that is one event like those before and needs no change.

        False: it is not known to be one, and was not taken.
        """
        return False

    @abstractmethod
    def whole(self) -> bytes: ...

    def tail(self) -> bytes:
        """What a streaming client still gets when the upstream has ended."""
        return b""

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Dialect(ABC):
    """One endpoint's API, as the caller speaks it."""

    path: str
    upstream_path: str

    @abstractmethod
    def read(self, body: dict[str, Any], raw: bytes) -> Reading:
        """Understand a request.

        Raises:
            RequestError: it is not a request of this API.
        """

    @abstractmethod
    def upstream(self, reading: Reading, extra: Mapping[str, Any]) -> bytes:
        """The body to send to the engine: always streamed, with `extra` fields set."""

    @abstractmethod
    def reply(self, reading: Reading) -> Reply:
        """A fresh reply for one attempt at the request."""

    def answer(self, reading: Reading, tokens: Callable[[int], int]) -> bytes | None:
        """The answer to a request that needs no engine; None if it does.

        Args:
            tokens: estimates tokens from bytes of text.
        """
        return None

    def streams(self, reading: Reading) -> bool:
        """Whether the engine can be asked to stream this request."""
        return True

    def usage_of(self, body: Any) -> Usage | None:
        """Usage in a body that came unstreamed."""
        return openai_usage(body.get("usage")) if isinstance(body, dict) else None

    @abstractmethod
    def error(self, status: int, message: str) -> bytes:
        """An error body."""

    @abstractmethod
    def stream_error(self, status: int, message: str) -> bytes:
        """An error as an event of a stream that has begun."""

    def engine_error(self, status: int, body: bytes) -> bytes:
        """An engine's error body in the caller's dialect."""
        return body

    def engine_head(self, headers: Mapping[str, str]) -> Headers:
        """The engine's headers to pass on with an answer."""
        return [(name, headers[name]) for name in _PASSED_ON if name in headers]


_PASSED_ON = ("x-request-id", "openai-processing-ms", "openai-version", "retry-after")


def decode_body(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request body.

    Raises:
        RequestError: it is none.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = _decode_leniently(raw)
    if not isinstance(body, dict):
        raise RequestError(400, "the body must be a JSON object")
    return body


def _decode_leniently(raw: bytes) -> Any:
    """What orjson refuses though engines take it: lone surrogates, NaN, huge integers."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if isinstance(error, ValueError) else "too deep"
        raise RequestError(400, f"the body is not JSON: {reason}") from None


def encode(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # what only the standard library can decode, only it can encode
        return json.dumps(value).encode()


def rewritten(reading: Reading, changes: Mapping[str, Any]) -> bytes:
    """The request body with top-level fields set, and refused ones gone.

    Untouched bytes stay as the client wrote them: nothing to change gives the very same body, and
    new fields are put before the closing brace.
    """
    body = reading.body
    wanted = {name: value for name, value in changes.items() if body.get(name, _NONE) != value}
    refused = REFUSED_FIELDS.intersection(body)
    if not refused and not wanted:
        return reading.raw
    if not refused and body and wanted.keys().isdisjoint(body):
        end = reading.raw.rindex(b"}")
        return reading.raw[:end] + b"," + encode(wanted)[1:]
    kept = {name: value for name, value in body.items() if name not in refused}
    return encode({**kept, **wanted})


_NONE = object()


def openai_usage(usage: Any) -> Usage | None:
    """Usage of an OpenAI-style API, where prompt tokens include cached ones."""
    if not isinstance(usage, dict):
        return None
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
    if not (is_count(prompt) and is_count(output)):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(prompt, cached if is_count(cached) and cached <= prompt else None, output)


def is_count(value: Any) -> TypeGuard[int]:
    """Whether it can be a number of tokens; what cannot is not believed."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40


def content_texts(content: Any) -> list[str]:
    """Texts of a message's content: a string, or a list of parts."""
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            texts.append(_part_text(part))
    return texts


def _part_text(part: dict[str, Any]) -> str:
    for name in ("text", "thinking", "refusal"):
        if isinstance(part.get(name), str):
            return str(part[name])
    if part.get("type") == "tool_result":
        return "".join(content_texts(part.get("content")))
    # A tool call, an image, anything new: its JSON stands for it.
    return encode({k: v for k, v in part.items() if k not in ("type", "cache_control")}).decode(
        "utf-8", "replace"
    )


def refuse_addresses(messages: Sequence[Any]) -> None:
    """Raises RequestError if a message tells the engine to fetch a URL or file.

    Data that is in the request itself (`data:` URLs, base64) is welcome.
    """
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") in URL_PARTS and _addresses(part):
                raise RequestError(
                    400,
                    f"content part `{part['type']}` names a URL or file to fetch, which this "
                    "gateway does not allow",
                    "send the data itself, or serve with --allow-urls",
                )


def _addresses(value: Any) -> bool:
    if isinstance(value, dict):
        return any(
            (
                name
                in ("url", "image_url", "file_url", "video_url", "audio_url", "file_id", "path")
                and isinstance(inner, str)
                and not inner.startswith("data:")
            )
            or _addresses(inner)
            for name, inner in value.items()
        )
    return isinstance(value, list) and any(_addresses(item) for item in value)
