"""A worker for Dynamo's frontend that is a replica which runs already: it registers itself as
Dynamo's own workers do, and passes on what the frontend sends to the replica's OpenAI API.

Run by Dynamo's interpreter, one process a replica; of itself it needs nothing of this project:

    python -I dynamo_bridge.py --name r0 --url http://127.0.0.1:8000 --model NAME --folder FOLDER

The frontend, its tokenizer and its router are Dynamo's, unmodified: it sends token numbers and
gets token numbers. KV events go from the replica's own ZMQ publisher to the router by Dynamo's
own relay; of load, the share of KV in use is told every `--interval` seconds.

Sources: ai-dynamo 1.3.1, `dynamo.llm` and `dynamo.runtime` (bindings), its workers for vLLM and
SGLang; vLLM's and SGLang's OpenAI-compatible servers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

SAMPLING = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)
STOPPING = ("max_tokens", "min_tokens", "ignore_eos")
_HIDDEN_STOPS = ("stop_token_ids_hidden", "stop_token_ids")
_REASONS = {"tool_calls": "stop", "abort": "cancelled"}
_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_USAGE = re.compile(r"^(?:vllm:kv_cache_usage_perc|sglang:token_usage)\S* ([0-9.eE+-]+)", re.M)
_CAPACITY = re.compile(r"^sglang:max_total_num_tokens\S* ([0-9.eE+-]+)", re.MULTILINE)

Chunk = dict[str, Any]


def completion_request(request: Mapping[str, Any], model: str) -> dict[str, Any]:
    """What the replica is asked at /v1/completions for a request of Dynamo's (token numbers,
    `sampling_options`, `stop_conditions`, `output_options`).

    Stop texts stay with the frontend, which looks for them in the text it makes.
    """
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(request["token_ids"]),
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,  # vLLM's; SGLang does without
    }
    sampling = request.get("sampling_options") or {}
    stopping = request.get("stop_conditions") or {}
    body |= {name: sampling[name] for name in SAMPLING if sampling.get(name) is not None}
    body |= {name: stopping[name] for name in STOPPING if stopping.get(name) is not None}
    stops = sorted({number for name in _HIDDEN_STOPS for number in stopping.get(name) or ()})
    if stops and not stopping.get("ignore_eos"):
        body["stop_token_ids"] = stops
    guided = sampling.get("guided_decoding")
    if isinstance(guided, dict):
        kept = {key: value for key, value in guided.items() if value is not None}
        if kept:
            body["structured_outputs"] = kept
    logprobs = (request.get("output_options") or {}).get("logprobs")
    if logprobs is not None:
        body["logprobs"] = logprobs
    priority = (request.get("routing") or {}).get("priority")
    if priority is not None:
        body["priority"] = priority
    return body


class Translation:
    """The events of one streamed completion as chunks of token numbers.

    Args:
        encode: the tokens of a text, for replicas that send no token numbers.
    """

    def __init__(self, encode: Callable[[str], Sequence[int]]) -> None:
        self._encode = encode
        self._usage: dict[str, Any] | None = None
        self._ended: dict[int, Chunk] = {}
        self._tokens = 0
        self._prompt_tokens = 0

    def take(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        """Chunks for an event. Those that end a choice wait for the usage, which comes last."""
        if "error" in event:
            raise ReplicaError(_message(event))
        if event.get("usage") is not None:
            self._usage = usage_of(event["usage"])
        for choice in event.get("choices") or ():
            index = choice.get("index", 0)
            numbers = choice.get("token_ids")
            if numbers is None:
                numbers = list(self._encode(choice["text"])) if choice.get("text") else []
            self._tokens += len(numbers)
            chunk: Chunk = {"token_ids": numbers, "index": index}
            reason = choice.get("finish_reason")
            if choice.get("stop_reason") is not None:
                chunk["stop_reason"] = choice["stop_reason"]
            if reason is not None:
                chunk["finish_reason"] = _REASONS.get(reason, reason)
                self._ended[index] = chunk
            elif numbers:
                yield chunk

    def end(self, prompt_tokens: int) -> Iterator[Chunk]:
        """The last chunks, with the replica's own count of tokens where it gave one.

        Raises:
            ReplicaError: the stream ended before an answer did.
        """
        if not self._ended:
            raise ReplicaError("the replica's answer ended early")
        usage = self._usage or {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self._tokens,
            "total_tokens": prompt_tokens + self._tokens,
        }
        for chunk in self._ended.values():
            yield {**chunk, "completion_usage": usage}


class ReplicaError(Exception):
    """The replica refused a request, or failed in the middle of it."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


def usage_of(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Usage in the fields that Dynamo passes on."""
    prompt, output = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
    }


def _message(event: Mapping[str, Any]) -> str:
    error = event["error"]
    found = error.get("message") if isinstance(error, dict) else error
    return str(found or "the replica reported an error")


class EventLines:
    """Cuts a stream of server-sent events into the JSON objects of its `data` lines."""

    def __init__(self) -> None:
        self._rest = b""
        self.done = False

    def feed(self, part: bytes) -> Iterator[dict[str, Any]]:
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if data == b"[DONE]":
                self.done = True
            elif data:
                found = json.loads(data)
                if isinstance(found, dict):
                    yield found


@dataclass(frozen=True, slots=True)
class KvShape:
    """KV cache of a replica, as its metrics page tells it; 0: it does not."""

    block_tokens: int
    blocks: int
    used: float
    """Share in use."""


def kv_shape(page: str) -> KvShape:
    """The KV cache from a metrics page of vLLM or SGLang."""
    block = blocks = 0
    config = _CONFIG.search(page)
    if config is not None:
        labels = dict(_LABEL.findall(config[1]))
        block, blocks = (_whole(labels.get(name)) for name in ("block_size", "num_gpu_blocks"))
    capacity = _CAPACITY.search(page)
    if not blocks and capacity is not None:
        block, blocks = 1, int(float(capacity[1]))
    used = _USAGE.search(page)
    return KvShape(block, blocks, float(used[1]) if used else 0.0)


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


class Bridge:
    """Answers Dynamo's requests with the replica's answers.

    Args:
        tell: host and UDP port of who wants to know which requests came here; None: nobody.
    """

    def __init__(
        self, name: str, url: str, model: str, folder: Path, tell: tuple[str, int] | None
    ) -> None:
        self.name, self.url, self._model, self._folder = name, url, model, folder
        self._tell = tell
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM) if tell else None
        self._session: Any = None
        self._tokenizer: Any = None

    async def open(self) -> None:
        aiohttp = import_module("aiohttp")
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def page(self, path: str) -> str:
        """A page of the replica; empty where it has none."""
        async with self._session.get(self.url + path) as response:
            text: str = await response.text()
            return text if response.status == 200 else ""

    async def generate(self, request: Mapping[str, Any], context: Any) -> AsyncIterator[Chunk]:
        """Chunks of the replica's answer to a request of Dynamo's."""
        if self._socket is not None and self._tell is not None:
            self._socket.sendto(f"{context.id()} {self.name}".encode(), self._tell)
        # Dynamo may leave this generator standing where it is when the client leaves: what reads
        # from the replica is a task of its own, which ends then whatever becomes of the generator.
        events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        body = completion_request(request, self._model)
        reading = asyncio.ensure_future(self._read(body, events))
        reading.add_done_callback(lambda task: events.put_nowait(None))
        left = asyncio.ensure_future(context.async_killed_or_stopped())
        left.add_done_callback(lambda task: reading.cancel())
        reading.add_done_callback(lambda task: left.cancel())
        translation = Translation(self._encode)
        try:
            while (event := await events.get()) is not None:
                for chunk in translation.take(event):
                    yield chunk
            if reading.cancelled():
                return
            reading.result()
            for chunk in translation.end(len(request["token_ids"])):
                yield chunk
        except ReplicaError as error:
            raise self._failure(error) from None
        finally:
            reading.cancel()

    async def _read(
        self, body: Mapping[str, Any], events: asyncio.Queue[dict[str, Any] | None]
    ) -> None:
        """Put the events of an answer into the queue; cancelling it ends the replica's request."""
        headers = {"content-type": "application/json"}
        data = json.dumps(body, separators=(",", ":")).encode()
        path = self.url + "/v1/completions"
        async with self._session.post(path, data=data, headers=headers) as response:
            if response.status != 200:
                text = (await response.text())[:500]
                message = f"replica {self.name} says {response.status}: {text}"
                raise ReplicaError(message, refused=400 <= response.status < 500)
            lines = EventLines()
            async for part in response.content.iter_any():
                for event in lines.feed(part):
                    events.put_nowait(event)

    def _failure(self, error: ReplicaError) -> Exception:
        """In Dynamo's words, which the frontend makes a status of."""
        exceptions = import_module("dynamo.llm.exceptions")
        kind = exceptions.InvalidArgument if error.refused else exceptions.Unknown
        failure: Exception = kind(str(error))
        return failure

    def _encode(self, text: str) -> list[int]:
        if self._tokenizer is None:
            library = import_module("tokenizers")
            self._tokenizer = library.Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        numbers: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return numbers


async def serve(given: argparse.Namespace) -> None:
    """Register the replica and answer until told to end."""
    llm, runtime_module = import_module("dynamo.llm"), import_module("dynamo.runtime")
    loop = asyncio.get_running_loop()
    runtime = runtime_module.DistributedRuntime(loop, "file", "tcp", event_plane="zmq")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, runtime.shutdown)
    host, _, port = (given.tell or "").rpartition(":")
    tell = (host, int(port)) if given.tell else None
    bridge = Bridge(given.name, given.url, given.model, given.folder, tell)
    await bridge.open()
    try:
        shape = kv_shape(await bridge.page("/metrics"))
        block = given.block_tokens or shape.block_tokens or 16
        endpoint = runtime.endpoint(f"{given.namespace}.backend.generate")
        publisher = None
        if given.kv_events:
            publisher = llm.KvEventPublisher(
                endpoint=endpoint,
                kv_block_size=block,
                zmq_endpoint=given.kv_events,
                zmq_topic="",
                enable_local_indexer=True,
            )
        await _register(llm, endpoint, given, block, shape.blocks)
        telling = asyncio.ensure_future(_tell_load(llm, endpoint, bridge, given.interval))
        print(f"replica {given.name} at {given.url}: registered", flush=True)
        try:
            await endpoint.serve_endpoint(bridge.generate, graceful_shutdown=False)
        finally:
            telling.cancel()
            if publisher is not None:
                publisher.shutdown()
    finally:
        await bridge.close()


async def _register(
    llm: Any, endpoint: Any, given: argparse.Namespace, block: int, blocks: int
) -> None:
    config = llm.ModelRuntimeConfig()
    config.total_kv_blocks = blocks or None
    config.max_num_seqs = given.max_sequences
    config.max_num_batched_tokens = given.batch_tokens
    config.enable_local_indexer = bool(given.kv_events)
    if given.tool_parser:
        config.tool_call_parser = given.tool_parser
    if given.reasoning_parser:
        config.reasoning_parser = given.reasoning_parser
    await llm.register_model(
        llm.ModelInput.Tokens,
        llm.ModelType.Chat | llm.ModelType.Completions,
        endpoint,
        str(given.folder),
        model_name=given.model,
        worker_type=llm.WorkerType.Aggregated,
        kv_cache_block_size=block,
        runtime_config=config,
    )


async def _tell_load(llm: Any, endpoint: Any, bridge: Bridge, interval_s: float) -> None:
    """Tell the router how many blocks the replica has in use, again and again."""
    publisher = llm.WorkerMetricsPublisher()
    await publisher.create_endpoint(endpoint)
    while True:
        shape = kv_shape(await bridge.page("/metrics"))
        publisher.publish(0, kv_used_blocks=round(shape.used * shape.blocks))
        await asyncio.sleep(interval_s)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="the model's, for its tokenizer")
    parser.add_argument("--namespace", default="agentsched")
    parser.add_argument("--kv-events", default=None, help="ZMQ address of the replica's KV events")
    parser.add_argument("--block-tokens", type=int, default=0)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--max-sequences", type=int, default=256)
    parser.add_argument("--tool-parser", default=None)
    parser.add_argument("--reasoning-parser", default=None)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--tell", default=None, help="HOST:PORT to send `REQUEST NAME` to by UDP")
    import_module("uvloop").run(serve(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
