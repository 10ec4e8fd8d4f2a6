"""A hand-made Claude Code log in the shape that Claude Code 2.1 writes, with sub-agents in two
levels, and the same in the shapes of older versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SESSION = "00000000-aaaa-4bbb-8ccc-000000000001"


def usage(new: int, written: int, cached: int, output: int) -> dict[str, int]:
    """Usage as the Messages API gives it: the prompt is the sum of the first three."""
    return {
        "input_tokens": new,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def _record(kind: str, at: str, agent: str | None, **fields: Any) -> dict[str, Any]:
    record = {
        "type": kind,
        "timestamp": f"2026-03-01T10:{at}Z",
        "sessionId": SESSION,
        "version": "2.1.0",
        "isSidechain": agent is not None,
        "uuid": f"{agent or 'main'}-{at}-{kind}",
        "parentUuid": None,
    }
    return record | ({"agentId": agent} if agent else {}) | fields


def person(at: str, text: str, agent: str | None = None, **fields: Any) -> dict[str, Any]:
    """What a person, or the parent, says."""
    return _record("user", at, agent, message={"role": "user", "content": text}, **fields)


def reply(
    at: str, message: str, used: dict[str, int], block: dict[str, Any], agent: str | None = None,
    stop: str | None = None, model: str = "m",
) -> dict[str, Any]:  # fmt: skip
    """One content block of a reply."""
    body = {"id": message, "role": "assistant", "model": model, "usage": used, "content": [block]}
    return _record("assistant", at, agent, message=body | {"stop_reason": stop})


def call(name: str, call_id: str, **given: Any) -> dict[str, Any]:
    """A tool call block."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def text(words: str) -> dict[str, Any]:
    """A text block."""
    return {"type": "text", "text": words}


def result(at: str, call_id: str, agent: str | None = None, **fields: Any) -> dict[str, Any]:
    """The result of a tool call."""
    block = {"type": "tool_result", "tool_use_id": call_id, "content": "..."}
    return _record("user", at, agent, message={"role": "user", "content": [block]}, **fields)


MAIN = [
    {"type": "queue-operation", "operation": "enqueue", "timestamp": "2026-03-01T10:00:00.000Z",
     "sessionId": SESSION},
    person("00:00.000", "count everything"),
    # One reply in three records; the first knows less of its usage than the last.
    reply("00:05.000", "m1", usage(1000, 0, 9000, 1), text("I will look.")),
    reply("00:05.500", "m1", usage(1000, 0, 9000, 80),
          call("Bash", "t1", command="cd /src && sleep 2; ls")),
    reply("00:06.000", "m1", usage(1000, 0, 9000, 80),
          call("Task", "t2", prompt="Count the lines.", subagent_type="counter")),
    result("00:08.500", "t1"),
    result("00:30.000", "t2", toolUseResult={"agentId": "a1", "status": "completed"}),
    reply("00:33.000", "m2", usage(120, 0, 10000, 40), text("There are 7."), stop="end_turn"),
    # A reply of Claude Code's own, and a person who comes back after 57 s.
    reply("00:34.000", "x", usage(0, 0, 0, 0), text("API error"), model="<synthetic>"),
    person("01:30.000", "and now?"),
    reply("01:33.000", "m3", usage(50, 0, 10160, 30), call("Read", "t3", file_path="a")),
    result("01:33.250", "t3"),
    _record("system", "01:34.000", None, subtype="compact_boundary", content="compacted"),
    person("01:34.000", "a summary", isCompactSummary=True),
    reply("01:40.000", "m4", usage(2000, 0, 6000, 20), text("Done."), stop="end_turn"),
]  # fmt: skip

COUNTER = [
    person("00:06.100", "Count the lines.", "a1"),
    reply("00:09.000", "s1", usage(500, 0, 2500, 60), call("Bash", "u1", command="wc -l x"), "a1"),
    reply("00:09.100", "s1", usage(500, 0, 2500, 60),
          call("Task", "u2", prompt="Count again."), "a1"),
    result("00:09.600", "u1", "a1"),
    result("00:27.100", "u2", "a1"),
    reply("00:29.000", "s2", usage(90, 0, 3060, 10), text("7"), "a1", stop="end_turn"),
]  # fmt: skip

AGAIN = [
    person("00:10.000", "Count again.", "a2"),
    reply("00:12.000", "r1", usage(700, 0, 2500, 5), text("7"), "a2", stop="end_turn"),
]


def lines(path: Path, records: list[dict[str, Any]]) -> Path:
    """Write records as JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_log(projects: Path) -> Path:
    """The log as version 2.1 lays it out; returns the session's file."""
    project = projects / "-src"
    agents = project / SESSION / "subagents"
    for name, records, tool in (("a1", COUNTER, "t2"), ("a2", AGAIN, "u2")):
        lines(agents / f"agent-{name}.jsonl", records)
        meta = {"agentType": "counter", "toolUseId": tool, "spawnDepth": 1}
        (agents / f"agent-{name}.meta.json").write_text(json.dumps(meta))
    return lines(project / f"{SESSION}.jsonl", MAIN)


def write_log_beside(projects: Path) -> Path:
    """Sub-agents in files beside the session's, without meta files: a result names the first; the
    second's first message is what the tool call that started it was given."""
    project = projects / "-src"
    lines(project / "agent-a1.jsonl", COUNTER)
    lines(project / "agent-a2.jsonl", AGAIN)
    return lines(project / f"{SESSION}.jsonl", MAIN)


def write_log_in_one_file(projects: Path) -> Path:
    """Sub-agents as side chains of the session's file, known by the chain of their parents."""
    chained: list[dict[str, Any]] = []
    for records in (COUNTER, AGAIN):
        above = None
        for record in records:
            plain = {key: value for key, value in record.items() if key != "agentId"}
            chained.append(plain | {"parentUuid": above})
            above = plain["uuid"]
    everything = sorted([*MAIN, *chained], key=lambda record: str(record["timestamp"]))
    plain_results = [
        {key: value for key, value in record.items() if key != "toolUseResult"}
        for record in everything
    ]
    return lines(projects / "-src" / f"{SESSION}.jsonl", plain_results)
