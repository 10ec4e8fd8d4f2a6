"""The client process of `automationbench-synthetic`: an agent of our own over OpenAI's chat API.

Chat with tools, not streamed, the session named in a header; the tools of one answer run one
after another, as AutomationBench's do. Standard library only.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from workloads.agents.automationbench_world import (
    MAX_STEPS,
    World,
    make_task,
    system_prompt,
    tool_schemas,
)
from workloads.agents.base import Assignment
from workloads.agents.client import AgentFailedError, Teller, serve

ANSWER_LIMIT_S = 1800.0
"""How long an answer may take; schedulers hold turns back. Our choice."""


class Chat:
    """A conversation with the model.

    Args:
        base_url: of the model API, without /v1.
        session: sent with every request.
    """

    def __init__(self, base_url: str, session: str, fixed: Mapping[str, Any]) -> None:
        parts = urlsplit(base_url)
        self._path = f"{parts.path.rstrip('/')}/v1/chat/completions"
        connection = http.client.HTTPSConnection if parts.scheme == "https" else _HTTP
        self._connection = connection(parts.netloc, timeout=ANSWER_LIMIT_S)
        self._headers = {
            "content-type": "application/json",
            "x-agentsched-session": session,
            "authorization": "Bearer EMPTY",
        }
        self._fixed = dict(fixed)
        self.messages: list[dict[str, Any]] = []
        self.usage = {"prompt_tokens": 0, "completion_tokens": 0}

    def answer(self) -> dict[str, Any]:
        """Ask for the next message and keep it. Nothing is tried twice.

        Raises:
            AgentFailedError: the API refused, or its answer cannot be read.
        """
        body = json.dumps({**self._fixed, "messages": self.messages})
        try:
            self._connection.request("POST", self._path, body, self._headers)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise AgentFailedError(f"model call: {type(error).__name__}: {error}") from None
        if response.status != 200:
            said = content.decode("utf-8", "replace")[:500]
            raise AgentFailedError(f"model call: status {response.status}: {said}")
        found = json.loads(content)
        for name in self.usage:
            self.usage[name] += (found.get("usage") or {}).get(name) or 0
        message: dict[str, Any] = found["choices"][0]["message"]
        kept = {k: message[k] for k in ("role", "content", "tool_calls") if message.get(k)}
        self.messages.append({"content": "", **kept})
        return message

    def close(self) -> None:
        self._connection.close()


_HTTP = http.client.HTTPConnection


def run(assignment: Assignment, teller: Teller) -> Mapping[str, Any]:
    """Work on one task until the model calls no tool, or the steps are used up."""
    task = make_task(assignment.task.payload["name"])
    world = World(task)
    fixed = {"model": assignment.model, "tools": tool_schemas(task.domain)}
    chat = Chat(assignment.base_url, assignment.session, fixed)
    chat.messages += [
        {"role": "system", "content": system_prompt(task.domain)},
        {"role": "user", "content": task.instruction},
    ]
    steps, finished = 0, False
    limit = int(assignment.settings.get("max_steps", MAX_STEPS))
    try:
        while steps < limit and not finished:
            steps += 1
            teller.tell("model_started", assignment.session)
            message = chat.answer()
            teller.tell("model_ended", assignment.session)
            calls = message.get("tool_calls") or []
            finished = not calls
            for call in calls:
                _use(world, chat, call, teller, assignment.session)
    except AgentFailedError as failed:
        failed.facts |= _facts(world, chat, steps)
        raise
    finally:
        chat.close()
        path = Path(assignment.folder) / "conversation.json"
        path.write_text(json.dumps(chat.messages, indent=1))
    return {**_facts(world, chat, steps), "exit": "done" if finished else "max_steps"}


def _use(world: World, chat: Chat, call: Mapping[str, Any], teller: Teller, session: str) -> None:
    """Run one tool and keep what it returns."""
    name = call["function"]["name"]
    teller.tell("tool_started", session, name=name)
    time.sleep(world.seconds())
    result = world.call(name, call["function"].get("arguments") or "{}")
    teller.tell("tool_ended", session, name=name)
    chat.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def _facts(world: World, chat: Chat, steps: int) -> dict[str, Any]:
    right, assertions = world.score()
    return {
        "turns": steps,
        "tool_calls": world.calls,
        "reward": float(right == assertions),
        "score": round(right / assertions, 6),
        "input_tokens": chat.usage["prompt_tokens"],
        "output_tokens": chat.usage["completion_tokens"],
    }


if __name__ == "__main__":
    serve(run)
