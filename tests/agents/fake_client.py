"""A client process without an agent: real HTTP to the gateway, tools that sleep, and bad manners.

The task's payload says what it does: `turns`, `tool_s`, and `manner`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workloads.agents.base import SCRATCH, Assignment
from workloads.agents.client import AgentFailedError, Teller, serve


def ask(assignment: Assignment, turn: int) -> int:
    """One model call; returns its completion tokens."""
    said = [{"role": "user", "content": f"{assignment.task.id} {'word ' * 40}"}]
    for earlier in range(turn):
        said += [
            {"role": "assistant", "content": f"answer {earlier}"},
            {"role": "user", "content": f"result {earlier}"},
        ]
    body = {"model": assignment.model, "messages": said, "max_tokens": 8}
    request = urllib.request.Request(
        f"{assignment.base_url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "x-agentsched-session": assignment.session},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        tokens: int = json.load(answer)["usage"]["completion_tokens"]
        return tokens


def misbehave(payload: Mapping[str, Any], folder: Path, teller: Teller) -> None:
    manner = payload.get("manner", "")
    if manner == "crash":
        os._exit(3)
    if manner == "hang":
        subprocess.Popen(["setsid", "sleep", payload["hang_s"]])
        (folder / "hanging").touch()
        time.sleep(1000)
    if manner == "fail":
        raise AgentFailedError("the agent gave up", {"exit_status": "GaveUp"})
    if manner == "raise":
        raise KeyError("surprise")
    if manner == "garbage":
        teller._stream.write('{"kind": "unheard of"}\n')
        print("what an agent prints goes to the log")
    if manner == "fill":
        (folder / SCRATCH).mkdir()
        for number in range(1000):
            (folder / SCRATCH / str(number)).write_bytes(b"x" * (1 << 20))
            time.sleep(0.01)


def run(assignment: Assignment, teller: Teller) -> Mapping[str, Any]:
    payload, tokens = assignment.task.payload, 0
    for turn in range(payload.get("turns", 2)):
        teller.tell("model_started", assignment.session)
        tokens += ask(assignment, turn)
        teller.tell("model_ended", assignment.session)
        if turn == 0:
            misbehave(payload, Path(assignment.folder), teller)
        if turn < payload.get("turns", 2) - 1:
            teller.tell("tool_started", assignment.session, name="sleep")
            time.sleep(payload.get("tool_s", 0.05))
            teller.tell("tool_ended", assignment.session, name="sleep")
    return {"exit_status": "Submitted", "tokens": tokens, "setting": assignment.settings.get("a")}


if __name__ == "__main__":
    if "--never-ready" in sys.argv:
        print("cannot find the package `agent`", file=sys.stderr)
        sys.exit(1)
    if "--slow-start" in sys.argv:
        time.sleep(0.7)
    serve(run)
