"""A small office of our own, for agents to work in: the stand-in for AutomationBench.

Six domains with four simulated applications each, whose records agents look up and change through
tool calls that take about 8 ms; what counts is the state they leave. The shape is AutomationBench's
(calls a session, calls a turn, sizes, times), the tasks are ours. Standard library only.

Source of the shape: AutomationBench (arXiv 2604.18934), runs of Qwen3.6-27B on its 600 public tasks
published at github.com/Hert4/automationbench-opera-gemma4.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

NAME = "automationbench-synthetic"

APPLICATIONS: Mapping[str, tuple[str, ...]] = {
    "sales": ("crm", "mailbox", "calendar", "quotes"),
    "marketing": ("campaigns", "mailbox", "audience", "surveys"),
    "operations": ("projects", "mailbox", "facilities", "vendors"),
    "support": ("tickets", "mailbox", "knowledge", "customers"),
    "finance": ("ledger", "mailbox", "invoices", "expenses"),
    "hr": ("people", "mailbox", "leave", "payroll"),
}
"""Domain: its applications; the second sends messages."""
TASKS_PER_DOMAIN = 100
MAX_STEPS = 50
"""Model calls of a session (--max-steps of those runs)."""

_TURNS_MU, _TURNS_SIGMA = 2.95, 0.59
"""Log of model calls a session."""
_EXTRA_CALLS = 0.86
"""Mean of tool calls a model call beyond the first: 1.86 in all."""
_TOOL_MU, _TOOL_SIGMA = -4.8, 0.47
"""Log of seconds a tool call: 8.2 ms at the median."""
_OUTPUT_MU, _OUTPUT_SIGMA = 5.93, 0.47
"""Log of output tokens a model call."""
_RECORDS = 60
"""Records of an application. Our choice."""
_RESULT_BYTES = 1700
"""Of what a look-up returns: 800 new tokens a turn at four bytes each, over 1.86 calls."""
_WORDS = tuple(
    """
    account review north pending renewal quarter owner region contract status summary follow
    invoice approved policy contact scheduled priority escalated closed
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as the plan has it."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SyntheticTask:
    """One task, wholly made from its name."""

    name: str
    domain: str
    instruction: str
    targets: tuple[str, ...]
    """Records of the domain's first application that must end with `value` in `status`."""
    value: str
    turns: tuple[tuple[Call, ...], ...]
    """Calls that solve it, turn by turn."""
    output_tokens: tuple[int, ...]
    """Of each turn's answer, and of the closing one."""


def task_names() -> list[str]:
    """All tasks, domain after domain."""
    return [
        f"{domain}-{number:03}" for domain in APPLICATIONS for number in range(TASKS_PER_DOMAIN)
    ]


def make_task(name: str) -> SyntheticTask:
    """The task of a name.

    Raises:
        ValueError: there is none of this name.
    """
    domain, _, number = name.rpartition("-")
    if domain not in APPLICATIONS or not number.isdecimal():
        raise ValueError(f"no task `{name}`")
    rng = random.Random(f"{NAME}/{name}")
    length = round(min(MAX_STEPS, max(3.0, rng.lognormvariate(_TURNS_MU, _TURNS_SIGMA)))) - 1
    sizes = [1 + _poisson(rng, _EXTRA_CALLS) for _ in range(length)]
    records, messages = APPLICATIONS[domain][0], APPLICATIONS[domain][1]
    # A search, a message, and two calls for each record in between.
    count = max(1, min(_RECORDS, (sum(sizes) - 2) // 2))
    targets = tuple(f"{records}-{n:03}" for n in sorted(rng.sample(range(_RECORDS), count)))
    value = f"{rng.choice(_WORDS)}-{rng.randrange(1000)}"
    calls = [Call(f"{records}_search", {"query": "status"})]
    for target in targets:
        calls.append(Call(f"{records}_get", {"id": target}))
        calls.append(Call(f"{records}_update", {"id": target, "field": "status", "value": value}))
    calls.append(Call(f"{messages}_create", {"subject": name, "text": f"{count} set to {value}"}))
    turns = tuple(_grouped(calls, sizes))
    instruction = (
        f"Task synthetic {name}. In {records}, set the field `status` of the records "
        f"{', '.join(targets)} to {value}. Then send a message with the subject {name} through "
        f"{messages}."
    )
    tokens = tuple(
        max(8, min(4096, round(rng.lognormvariate(_OUTPUT_MU, _OUTPUT_SIGMA))))
        for _ in range(len(turns) + 1)
    )
    return SyntheticTask(name, domain, instruction, targets, value, turns, tokens)


def _grouped(calls: Sequence[Call], sizes: Sequence[int]) -> list[tuple[Call, ...]]:
    """Calls in turns of these sizes; what is left over goes into turns of two."""
    turns: list[tuple[Call, ...]] = []
    at = 0
    for size in [*sizes, *[2] * len(calls)]:
        if at < len(calls) and len(turns) < MAX_STEPS - 1:
            turns.append(tuple(calls[at : at + size]))
            at += size
    if at < len(calls):  # the last turn takes the rest
        turns[-1] += tuple(calls[at:])
    return turns


def _poisson(rng: random.Random, mean: float) -> int:
    limit, product, count = math.exp(-mean), rng.random(), 0
    while product > limit:
        product *= rng.random()
        count += 1
    return count


def system_prompt(domain: str) -> str:
    """What all sessions of a domain begin with."""
    rules = "\n".join(
        f"{number + 1}. {domain.capitalize()} rule: {_filler(f'{domain}/{number}', 90)}"
        for number in range(12)
    )
    return (
        f"You automate work in {domain}. Use the tools to do what is asked, then say in one "
        f"sentence what you did. Ask nothing.\n\n{rules}"
    )


def tool_schemas(domain: str) -> list[dict[str, Any]]:
    """The tools of a domain, as OpenAI's API takes them."""
    texts = {"id": "The record's id", "query": "Words to look for", "page": "Page, from 0"}
    fields: Mapping[str, Sequence[str]] = {
        "search": ("query",),
        "get": ("id",),
        "list": ("page",),
        "update": ("id", "field", "value"),
        "create": ("subject", "text"),
    }
    return [
        {
            "type": "function",
            "function": {
                "name": f"{application}_{action}",
                "description": f"{action.capitalize()} in {application}. "
                + _filler(f"{application}/{action}", 140),
                "parameters": {
                    "type": "object",
                    "properties": {
                        name: {"type": "string", "description": texts.get(name, f"The {name}")}
                        for name in names
                    },
                    "required": list(names),
                },
            },
        }
        for application in APPLICATIONS[domain]
        for action, names in fields.items()
    ]


@cache
def _filler(seed: str, size: int) -> str:
    """Made-up text of this many characters."""
    rng = random.Random(seed)
    return " ".join(rng.choices(_WORDS, k=size // 4))[:size]  # a word and a space are longer


class World:
    """The state that one session works on.

    Args:
        task: whose records it holds.
    """

    def __init__(self, task: SyntheticTask) -> None:
        self._task = task
        self._rng = random.Random(f"{NAME}/times/{task.name}")
        self._records: dict[str, dict[str, dict[str, str]]] = {
            application: {
                f"{application}-{n:03}": {"id": f"{application}-{n:03}", "status": "open"}
                for n in range(_RECORDS)
            }
            for application in APPLICATIONS[task.domain]
        }
        self.calls = 0

    def seconds(self) -> float:
        """How long the next tool call takes."""
        return self._rng.lognormvariate(_TOOL_MU, _TOOL_SIGMA)

    def call(self, name: str, arguments: str) -> str:
        """What a tool returns, as JSON; mistakes of the caller are answers too."""
        self.calls += 1
        application, _, action = name.rpartition("_")
        records = self._records.get(application)
        try:
            given = json.loads(arguments or "{}")
        except ValueError:
            return json.dumps({"error": "the arguments are not JSON"})
        if records is None or not isinstance(given, dict):
            return json.dumps({"error": f"there is no {name}"})
        return json.dumps(self._act(records, application, action, given))

    def _act(
        self, records: dict[str, dict[str, str]], application: str, action: str, given: Any
    ) -> dict[str, Any]:
        record = records.get(str(given.get("id")))
        if action in ("search", "list"):
            return {"ids": sorted(records)[:20], "notes": _filler(application, _RESULT_BYTES)}
        if action == "create":
            new = f"{application}-{len(records):03}"
            records[new] = {**{k: str(v) for k, v in given.items()}, "id": new}
            return {"created": new}
        if record is None:
            return {"error": f"no record {given.get('id')}"}
        if action == "update":
            record[str(given.get("field"))] = str(given.get("value"))
            return {"updated": record["id"]}
        if action == "get":
            return {**record, "notes": _filler(record["id"], _RESULT_BYTES)}
        return {"error": f"{application} cannot {action}"}

    def score(self) -> tuple[int, int]:
        """Assertions on the end state that hold, and how many there are."""
        first, second = APPLICATIONS[self._task.domain][:2]
        right = sum(
            1 for t in self._task.targets if self._records[first][t]["status"] == self._task.value
        )
        sent = any(
            record.get("subject") == self._task.name for record in self._records[second].values()
        )
        return right + int(sent), len(self._task.targets) + 1
