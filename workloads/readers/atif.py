"""Agent trajectories in ATIF, as Harbor writes them (`agent/trajectory.json`; Apache-2.0).

Input: one JSON object a session: schema_version `ATIF-v1.x`, agent, steps[] {source, timestamp,
tool_calls, observation, metrics {prompt_tokens, completion_tokens, cached_tokens}},
subagent_trajectories. Beside it, where Harbor ran the trial, `result.json` with the time of set-up
and, of terminus-2, of every model call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentsched import TraceError
from workloads.model import Session, ToolCall
from workloads.readers.chain import Call, CommonStart, parallel, turns_of
from workloads.readers.documents import (
    command_name,
    find_files,
    moment,
    part,
    parts,
    read_document,
    short_name,
    stated_sleep,
    text_of,
)
from workloads.trace_fields import MAX_TOKENS, Fields


@dataclass(frozen=True, slots=True)
class AtifSettings:
    """How the time between steps is split where no file says it. Our choices."""

    first_token_s: float = 0.5
    """Model time before the first token."""
    output_tokens_per_s: float = 100.0
    """Model speed."""


@dataclass(slots=True)
class _Step:
    """A step that stands for a model call, with the tool calls of those that follow without."""

    at: float | None
    prompt: int
    output: int
    cached: int
    tools: list[Fields] = field(default_factory=list)
    started: list[Fields] = field(default_factory=list)
    """References to the sub-agents that its tool calls started."""


def read_atif(path: Path, settings: AtifSettings | None = None) -> Iterator[Session]:
    """One session for each trajectory of a file or folder, its sub-agents after it.

    terminus-2 gives a step the time at which its commands ended: tool time is what passed since
    the step before, less the model call's own time (from result.json). Others give it the time of
    the reply: tool time is what passes to the next step, less the time the model would take at the
    speed of the settings. Tools of one step share its time as their stated durations do, or evenly.
    A step with copied context, or without tokens, is no model call; its tools belong to the call
    before. A trajectory continued in another file is one session. In a folder, trajectories
    without a model call (trials that failed at once) are left out.

    Raises:
        TraceError: a file is no ATIF trajectory, or there is no model call at all.
    """
    choice = settings or AtifSettings()
    start = CommonStart("atif/start")
    found = False
    for file in find_files(path, "trajectory.json"):
        document, trial = read_document(file), _result(file)
        if not _has_calls(document) and path.is_dir():
            continue
        found = True
        name = f"harbor-{_name(path, file, document, trial)}"
        yield from _sessions(document, file, name, trial, start, choice)
    if not found:
        raise TraceError("no trajectory has prompt_tokens", "name other trials", file=path)


def _has_calls(document: Fields) -> bool:
    return bool(_steps(parts(document, "steps")))


def _name(path: Path, file: Path, document: Fields, trial: Fields) -> str:
    """Of a folder's trajectories, where they lie in it; of one file, what it calls itself."""
    if path.is_dir():
        inside = file.relative_to(path).parent
        inside = inside.parent if inside.name == "agent" else inside
        if inside.parts:
            return short_name(inside.as_posix(), "session")
    own = trial.get("trial_name") or document.get("session_id") or file.resolve().parent.name
    return short_name(str(own), "session")


def _sessions(
    document: Fields,
    file: Path,
    name: str,
    trial: Fields | None,
    start: CommonStart,
    choice: AtifSettings,
    above: tuple[str, int] | None = None,
) -> Iterator[Session]:
    if not str(document.get("schema_version")).startswith("ATIF-"):
        document.refuse("schema_version", "not an ATIF trajectory", "name a trajectory.json")
    pages = list(_pages(document, file))
    steps = _steps([step for page in pages for step in parts(page, "steps")])
    if not steps:
        document.refuse("steps", "no step has prompt_tokens", "leave the file out")
    agent = str(part(document, "agent").get("name") or "agent")
    calls = _calls(steps, agent, trial, choice)
    opening = b"".join(
        text_of(step.get("message")).encode("utf-8", "replace")
        for step in parts(document, "steps")[:2]
        if step.get("source") != "agent"
    )
    yield Session(
        id=name,
        turns=turns_of(calls, start.share(opening, calls[0].prompt) if above is None else ()),
        workload=f"harbor-{short_name(agent, 'agent')}",
        origin="recorded",
        parent=above[0] if above else None,
        spawn_turn=above[1] if above else None,
        setup_s=_setup(trial) if trial is not None else 0.0,
    )
    for number, (child, place, turn) in enumerate(_children(pages, steps, file)):
        yield from _sessions(child, place, f"{name}/sub{number}", None, start, choice, (name, turn))


def _pages(document: Fields, file: Path) -> Iterator[Fields]:
    """The trajectory and those that continue it."""
    seen = {file.resolve()}
    yield document
    while isinstance(after := document.get("continued_trajectory_ref"), str):
        place = (file.parent / after).resolve()
        if place in seen or not place.is_file():
            document.refuse("continued_trajectory_ref", "no such file", "keep the files together")
        seen.add(place)
        document = read_document(place)
        yield document


def _steps(found: Sequence[Fields]) -> list[_Step]:
    steps: list[_Step] = []
    for step in found:
        own = step.get("source") == "agent" and step.get("is_copied_context") is not True
        call = _model_call(step) if own else None
        if call is not None:
            steps.append(call)
        if not steps:
            continue
        if own:
            steps[-1].tools.extend(parts(step, "tool_calls"))
            steps[-1].at = moment(step, "timestamp") or steps[-1].at
        for result in parts(part(step, "observation"), "results"):
            steps[-1].started.extend(parts(result, "subagent_trajectory_ref"))
    return steps


def _model_call(step: Fields) -> _Step | None:
    metrics = part(step, "metrics")
    prompt = metrics.whole("prompt_tokens", default=None, high=MAX_TOKENS)
    if not prompt:
        return None
    output = metrics.whole("completion_tokens", default=0, high=MAX_TOKENS) or 0
    cached = metrics.whole("cached_tokens", default=0, high=MAX_TOKENS) or 0
    return _Step(moment(step, "timestamp"), prompt, max(1, output), min(cached, prompt))


def _calls(
    steps: Sequence[_Step], agent: str, trial: Fields | None, choice: AtifSettings
) -> list[Call]:
    ends_with_tools = agent.startswith("terminus")
    model = _model_seconds(steps, trial, choice)
    calls: list[Call] = []
    for index, step in enumerate(steps):
        last = index + 1 == len(steps)
        if ends_with_tools:
            since = steps[index - 1].at if index else _began(trial)
            spent = _between(since, step.at) - model[index]
        else:
            spent = 0.0 if last else _between(step.at, steps[index + 1].at) - model[index + 1]
        calls.append(
            Call(
                prompt=step.prompt,
                output=step.output,
                cached=step.cached,
                tools=() if last else _tools(step, max(0.0, spent), in_turn=ends_with_tools),
            )
        )
    return calls


def _model_seconds(
    steps: Sequence[_Step], trial: Fields | None, choice: AtifSettings
) -> list[float]:
    """Seconds of each model call: recorded, or as the settings have it."""
    if trial is not None:
        metadata = part(part(trial, "agent_result"), "metadata")
        times = metadata.get("api_request_times_msec")
        if isinstance(times, list) and len(times) == len(steps):
            return [float(ms) / 1000 for ms in times if isinstance(ms, (int, float))]
    return [choice.first_token_s + s.output / choice.output_tokens_per_s for s in steps]


def _tools(step: _Step, seconds: float, *, in_turn: bool) -> tuple[ToolCall, ...]:
    stated = [_stated(call) for call in step.tools]
    whole = sum(hint or 0.0 for hint in stated)
    tools: list[ToolCall] = []
    for call, hint in zip(step.tools, stated, strict=True):
        share = (hint or 0.0) / whole if whole else 1 / len(step.tools)
        spent = seconds * share if in_turn else seconds
        tools.append(ToolCall(_tool_name(call), round(spent, 3), hint))
    return tuple(tools) if in_turn else parallel(tools)


def _tool_name(call: Fields) -> str:
    name, given = str(call.get("function_name") or "tool"), part(call, "arguments")
    command = given.get("keystrokes") or given.get("command")
    if isinstance(command, str) and name.lower().startswith("bash"):
        return command_name(command)
    return short_name(name, "tool")


def _stated(call: Fields) -> float | None:
    given = part(call, "arguments")
    if given.get("duration") is not None:
        return given.seconds("duration", default=None)
    command = given.get("keystrokes") or given.get("command")
    return stated_sleep(command) if isinstance(command, str) else None


def _children(
    pages: Sequence[Fields], steps: Sequence[_Step], file: Path
) -> Iterator[tuple[Fields, Path, int]]:
    """(trajectory, its file, turn that started it) of every sub-agent."""
    embedded = {
        str(each.get("trajectory_id")): each
        for page in pages
        for each in parts(page, "subagent_trajectories")
    }
    for turn, step in enumerate(steps):
        for ref in step.started:
            child = embedded.get(str(ref.get("trajectory_id")))
            if child is not None:
                yield child, file, turn
            elif isinstance(ref.get("trajectory_path"), str):
                place = file.parent / str(ref.get("trajectory_path"))
                if not place.is_file():
                    ref.refuse("trajectory_path", "no such file", "keep the files together")
                yield read_document(place), place, turn


def _result(file: Path) -> Fields:
    for folder in (file.parent, file.parent.parent):
        if (folder / "result.json").is_file():
            return read_document(folder / "result.json")
    return Fields({}, file, None)


def _began(trial: Fields | None) -> float | None:
    return None if trial is None else moment(part(trial, "agent_execution"), "started_at")


def _setup(trial: Fields) -> float:
    total = 0.0
    for name in ("environment_setup", "agent_setup"):
        phase = part(trial, name)
        total += _between(moment(phase, "started_at"), moment(phase, "finished_at"))
    return round(total, 3)


def _between(since: float | None, until: float | None) -> float:
    if since is None or until is None:
        return 0.0
    return max(0.0, until - since)
