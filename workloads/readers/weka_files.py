"""Weka Claude Code traces as published (github.com/callanjfox/kv-cache-tester), a file a session.

Input: one JSON object: id, block_size, tool_tokens, system_tokens, requests[] {t (s), type `n`
or `s`, in, out, hash_ids, input_types, stop, api_time, think_time (s)}; an entry of type
`subagent` {agent_id, requests[]} stands before the request that waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from workloads.model import Session
from workloads.readers.blocks import block_ids
from workloads.readers.documents import find_files, parts, read_document, short_name
from workloads.readers.weka import Request, WekaSettings, family, start_of
from workloads.trace_fields import MAX_TOKENS, Fields


def read_weka_files(path: Path, settings: WekaSettings | None = None) -> Iterator[Session]:
    """One session for each file, read as workloads.readers.weka reads the lines made of them.

    Raises:
        TraceError: a file is no such trace; names file and field.
    """
    choice = settings or WekaSettings()
    for file in find_files(path, "*.json"):
        document = read_document(file)
        size = document.count("block_size", low=1)
        requests = list(_requests(document, size))
        if not requests:
            document.refuse("requests", "no request", "leave the file out")
        tools = document.whole("tool_tokens", default=0, high=MAX_TOKENS) or 0
        system = document.whole("system_tokens", default=0, high=MAX_TOKENS) or 0
        name = short_name(str(document.get("id") or file.stem), file.stem)
        yield from family(name, requests, start_of(tools, system, choice), choice)


def _requests(document: Fields, size: int) -> Iterator[Request]:
    last: dict[str, list[int | str]] = {}
    for number, entry in enumerate(parts(document, "requests")):
        if entry.get("type") == "subagent":
            agent = f"sub{number}-{short_name(str(entry.get('agent_id') or ''), 'agent')}"
            for inner in parts(entry, "requests"):
                yield _request(inner, agent, size, last)
        else:
            yield _request(entry, "main", size, last)


def _request(entry: Fields, agent: str, size: int, last: dict[str, list[int | str]]) -> Request:
    prompt = entry.count("in", low=1)
    blocks = _whole_blocks(entry, prompt, size)
    same = 0
    for one, other in zip(last.get(agent, ()), blocks, strict=False):
        if one != other:
            break
        same += 1
    last[agent] = blocks
    kinds = entry.items("input_types") if entry.get("input_types") is not None else []
    return Request(
        agent=agent,
        prompt=prompt,
        shared=min(same * size, prompt),
        output=max(1, entry.count("out", low=0)),
        at_s=entry.seconds("t", default=0.0) or 0.0,
        api_s=entry.seconds("api_time", default=0.0) or 0.0,
        gap_s=entry.seconds("think_time", default=None),
        stop=str(entry.get("stop") or ""),
        kind=" ".join(map(str, kinds)),
    )


def _whole_blocks(entry: Fields, prompt: int, size: int) -> list[int | str]:
    """The ids of whole blocks: some recordings give one to the begun block too, some do not."""
    given = entry.items("hash_ids") if entry.get("hash_ids") is not None else []
    if len(given) == prompt // size:
        return given
    return block_ids(entry, prompt, size)[: prompt // size]
