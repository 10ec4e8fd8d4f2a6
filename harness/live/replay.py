"""Closed-loop replay of a workload against any OpenAI endpoint; sans-IO but for the sender.

A worker plays a session: prompt, answer, tools, prompt, ... and takes up the next session when it
ends. What the trace counts is what is sent: the answer has exactly the recorded number of tokens,
and prompts repeat earlier ones as far as recorded.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from harness.live.clock import Clock
from harness.live.replay_answer import Outcome, StreamedAnswer
from harness.live.replay_texts import SessionText, chat_body
from harness.live.wire import Call, Request, Sender
from harness.sim.agents import Agent, nanoseconds
from harness.sim.clock import Priority
from harness.sim.driver import Recorder
from harness.sim.tools import ToolPool, parallel_groups
from results.records import SessionStatus, TurnRecord, TurnStatus
from workloads.model import Session, ToolCall, TurnSpec

PATH = "/v1/chat/completions"
Gaps = Literal["recorded", "sampled", "none"]


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How the trace is played."""

    model: str = "emulated"
    gaps: Gaps = "recorded"
    """Tool times: as recorded, drawn from all of the trace's, or none."""
    gap_scale: float = 1.0
    """Factor on tool times and other waits."""
    start_spread_s: float = 0.0
    """Workers start evenly over this time instead of all at once."""
    agent_retries: int = 3
    """How often a turn is sent again that failed."""
    retry_delay_s: float = 1.0
    """How long the agent waits before that."""
    context_limit: int = 1 << 30
    """Turns of more tokens are not sent."""
    tool_slots: int | None = None
    release: bool = True
    """Tell the gateway when a session ends."""
    show_tools: bool = True
    """Ask an emulated engine to answer with the recorded tool calls. Real engines ignore it."""
    session_header: str = "x-session-id"
    salt: str = ""
    seed: int = 0
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class ReplayCounts:
    """What the client saw of itself."""

    sessions: int = 0
    turns: int = 0
    in_flight: int = 0
    peak_in_flight: int = 0
    active: int = 0
    peak_active: int = 0
    wrong_length: int = 0
    """Answers of another length than the trace has."""
    output_tokens: int = 0
    dispatch_lags_ns: list[int] = field(default_factory=list)
    """From when a turn was due to when it was sent."""
    ttfts_ns: list[int] = field(default_factory=list)

    @property
    def ttft_mean_ms(self) -> float:
        """0 before any first token."""
        return sum(self.ttfts_ns) / len(self.ttfts_ns) / 1e6 if self.ttfts_ns else 0.0


class Replayer:
    """Plays sessions against one endpoint.

    Args:
        sessions: those without a parent are taken up in this order.
        workers: sessions active at once; None starts each at its `arrival_s`.
        sender: for a session, what sends its requests.
        release: told of sessions that ended before their last turn.
        progress: called after each ended session with (sessions ended, turns ended).
        done: called when all have ended.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        *,
        workers: int | None,
        sender: Sender,
        clock: Clock,
        recorder: Recorder,
        settings: ReplaySettings,
        release: Callable[[str], object] = lambda session: None,
        progress: Callable[[int, int], None] | None = None,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self.counts = ReplayCounts()
        self._settings, self._clock, self._recorder = settings, clock, recorder
        self._sender, self._release, self._progress, self._done = sender, release, progress, done
        self._workers = workers
        self._queue = deque(s for s in sessions if s.parent is None)
        self._children: dict[str, list[Session]] = {}
        for session in sessions:
            if session.parent is not None:
                self._children.setdefault(session.parent, []).append(session)
        self._total = len(sessions)
        self._tools = ToolPool(settings.tool_slots)
        self._gaps = _Gaps(sessions, settings)
        self._texts: dict[str, SessionText] = {}
        self._calls: dict[str, Call] = {}
        self._agents: dict[str, Agent] = {}
        """Of the sessions under way."""
        self._stopped = self._draining = False

    def start(self) -> None:
        """Schedule the first sessions."""
        if self._workers is None:
            for session in self._queue:
                self._schedule_start(session, nanoseconds(session.arrival_s or 0.0))
            self._queue.clear()
            return
        count = min(self._workers, len(self._queue))
        for position in range(count):
            delay = self._settings.start_spread_s * position / count
            self._schedule_start(self._queue.popleft(), nanoseconds(delay))

    def take_no_more(self) -> None:
        """Let the sessions under way end, and start no further ones."""
        self._queue.clear()

    def drain(self) -> int:
        """Begin no further turn; how many still run. To be asked again until none does."""
        self._draining = True
        self._queue.clear()
        return self.counts.in_flight

    def stop(self) -> None:
        """Give up: cancel what is in flight, record it so, and start nothing more."""
        self._stopped = True
        for call in list(self._calls.values()):
            call.cancel()
        self._calls.clear()
        for agent in self._agents.values():
            if agent.open is not None:
                why = "interrupted"
                self._record(agent.close_turn(self._clock.now, "client_gone", error=why))
        self._agents.clear()

    # Sessions.

    def _schedule_start(self, session: Session, at: int) -> None:
        self._clock.at(at, Priority.AGENT, partial(self._start, session))

    def _start(self, session: Session) -> None:
        if self._stopped or self._draining:
            return
        now = self._clock.now
        agent = self._agents[session.id] = Agent(session, now, 4.0)
        self._texts[session.id] = SessionText(session, self._settings.salt)
        self.counts.active += 1
        self.counts.peak_active = max(self.counts.peak_active, self.counts.active)
        ready = now + nanoseconds(session.setup_s)
        if session.deadline_s is not None:
            deadline = ready + nanoseconds(session.deadline_s)
            self._clock.at(deadline, Priority.AGENT, partial(self._deadline, agent))
        if ready > now:
            self._clock.at(ready, Priority.AGENT, partial(self._arrive, agent, ready))
        else:
            self._arrive(agent, now)

    def _deadline(self, agent: Agent) -> None:
        """The agent goes away in the middle of whatever it does."""
        if agent.ended or self._stopped:
            return
        error = f"stopped after {agent.session.deadline_s:g} s"
        if agent.open is not None:
            call = self._calls.pop(agent.session.id, None)
            if call is not None:
                self.counts.in_flight -= 1
                call.cancel()
            self._record(agent.close_turn(self._clock.now, "client_gone", error=error))
        self._end(agent, "deadline", error)

    def _end(self, agent: Agent, status: SessionStatus, error: str | None = None) -> None:
        session = agent.session
        agent.ended = True
        self._recorder.session(agent.record(self._clock.now, status, error))
        del self._texts[session.id], self._agents[session.id]
        self.counts.active -= 1
        if status != "finished":
            self._cancel_children(session, agent.index)
            if self._settings.release:
                self._release(session.id)
        self.counts.sessions += 1
        if session.parent is None and self._queue:
            self._start(self._queue.popleft())
        if self._progress is not None:
            self._progress(self.counts.sessions, self.counts.turns)
        if self.counts.sessions == self._total:
            self._done()

    def _cancel_children(self, session: Session, from_turn: int) -> None:
        for child in self._children.get(session.id, ()):
            if child.spawn_turn is not None and child.spawn_turn >= from_turn:
                agent = Agent(child, self._clock.now, 4.0)
                error = f"its parent {session.id} ended before starting it"
                self._recorder.session(agent.record(self._clock.now, "failed", error))
                self.counts.sessions += 1
                self._cancel_children(child, 0)

    # Turns.

    def _arrive(self, agent: Agent, due: int) -> None:
        if agent.ended or self._stopped or self._draining:
            return
        now = self._clock.now
        self.counts.dispatch_lags_ns.append(now - due)
        opened = agent.next_turn(now)
        spec, limit = opened.spec, self._settings.context_limit
        if spec.prompt_tokens + spec.output_tokens > limit:
            total = spec.prompt_tokens + spec.output_tokens
            error = f"turn {agent.index} needs {total} tokens, the limit is {limit}"
            self._record(agent.close_turn(now, "context_exceeded", error=error))
            self._end(agent, "context_exceeded", error)
            return
        self._send(agent)

    def _send(self, agent: Agent) -> None:
        opened, session = agent.open, agent.session
        assert opened is not None
        last = agent.index == len(session.turns) - 1
        extra: dict[str, Any] = {}
        if self._settings.show_tools and opened.spec.tools and not last:
            extra["emulate"] = {"tool_calls": [_shown(call) for call in opened.spec.tools]}
        line = self._texts[session.id].prompt(agent.index)
        body = chat_body(self._settings.model, line, opened.spec.output_tokens, extra)
        headers = {
            "content-type": "application/json",
            self._settings.session_header: session.id,
            **dict(self._settings.headers),
        }
        if session.parent is not None:
            headers["x-parent-session-id"] = session.parent
        if last and self._settings.release:
            headers["x-dynamo-session-final"] = "true"
        self.counts.in_flight += 1
        self.counts.peak_in_flight = max(self.counts.peak_in_flight, self.counts.in_flight)
        opened.arrived = self._clock.now
        answer = StreamedAnswer(self._clock, partial(self._answered, agent))
        call = self._sender.send(Request("POST", PATH, headers, body), answer)
        if agent.open is opened:  # a loopback may have answered already
            self._calls[session.id] = call

    def _answered(self, agent: Agent, outcome: Outcome) -> None:
        if self._stopped or agent.ended:
            return
        opened, now = agent.open, self._clock.now
        assert opened is not None
        self._calls.pop(agent.session.id, None)
        self.counts.in_flight -= 1
        opened.attempts += outcome.attempts
        opened.replica, opened.prefill_replica = outcome.replica, outcome.prefill_replica
        opened.first_token = outcome.first_token
        opened.dispatched = opened.arrived + outcome.pause_ns
        opened.held = opened.held or outcome.pause_ns > 0
        if outcome.ok:
            self._finish_turn(agent, outcome)
        elif outcome.status == 429:
            self._refused(agent, outcome)
        elif outcome.status == 400:
            self._fail(agent, "too_long", outcome)
        elif opened.resent >= self._settings.agent_retries or 400 < outcome.status < 500:
            self._fail(agent, "failed", outcome)
        else:
            delay = nanoseconds(self._settings.retry_delay_s)
            self._clock.at(now + delay, Priority.AGENT, partial(self._resend, agent))

    def _refused(self, agent: Agent, outcome: Outcome) -> None:
        if outcome.retry_after_s is None:
            self._fail(agent, "rejected", outcome)
            return
        at = self._clock.now + nanoseconds(outcome.retry_after_s)
        self._clock.at(at, Priority.AGENT, partial(self._resend, agent))

    def _resend(self, agent: Agent) -> None:
        if not (agent.ended or self._stopped or self._draining):
            agent.resend(self._clock.now)
            self._send(agent)

    def _fail(self, agent: Agent, status: TurnStatus, outcome: Outcome) -> None:
        error = outcome.error or f"HTTP status {outcome.status}"
        self._record(agent.close_turn(self._clock.now, status, error=error))
        ending: dict[TurnStatus, SessionStatus] = {"too_long": "too_long", "rejected": "rejected"}
        self._end(agent, ending.get(status, "failed"), error)

    def _finish_turn(self, agent: Agent, outcome: Outcome) -> None:
        opened, session, now = agent.open, agent.session, self._clock.now
        assert opened is not None
        spec, usage, index = opened.spec, outcome.usage, agent.index
        output = usage.output if usage is not None else outcome.tokens
        self.counts.wrong_length += output != spec.output_tokens
        self.counts.output_tokens += output
        if outcome.first_token is not None:
            self.counts.ttfts_ns.append(outcome.first_token - opened.arrived)
        self._texts[session.id].answered(outcome.text)
        record = agent.close_turn(
            now,
            "ok",
            cached=usage.cached if usage is not None else None,
            output=output,
            longest_gap=outcome.longest_gap,
            prefilled=(
                opened.arrived + outcome.prefilled_ns if outcome.prefilled_ns is not None else None
            ),
        )
        if usage is not None and usage.prompt != record.prompt_tokens:
            record = replace(record, prompt_tokens=usage.prompt)
        gaps = self._gaps.after(spec)
        self._record(replace(record, tool_s=gaps.tool_seconds, wait_s=gaps.wait_s))
        for child in self._children.get(session.id, ()):
            if child.spawn_turn == index:
                self._schedule_start(child, now)
        if agent.finished:
            self._end(agent, "finished")
        else:
            self._run_tools(agent, gaps, 0, now)

    def _run_tools(self, agent: Agent, spec: TurnSpec, position: int, due: int) -> None:
        """Let the turn's tools run, group by group, then the agent's other waiting."""
        if agent.ended or self._stopped:
            return
        groups = parallel_groups(spec.tools)
        if position < len(groups):
            end = self._tools.start(groups[position], due)
            after = partial(self._run_tools, agent, spec, position + 1, end)
            self._clock.at(end, Priority.AGENT, after)
            return
        agent.tool_end = due if groups else None
        arrival = due + nanoseconds(spec.wait_s)
        self._clock.at(arrival, Priority.AGENT, partial(self._arrive, agent, arrival))

    def _record(self, record: TurnRecord) -> None:
        self.counts.turns += 1
        self._recorder.turn(record)


def _shown(call: ToolCall) -> dict[str, Any]:
    arguments = {} if call.hint_s is None else {"duration": call.hint_s}
    return {"name": call.name, "arguments": arguments}


class _Gaps:
    """The waits after each turn, as the settings change them."""

    def __init__(self, sessions: Sequence[Session], settings: ReplaySettings) -> None:
        self._settings = settings
        self._rng = random.Random(f"{settings.seed}/gaps")
        self._pool = (
            [call.seconds for s in sessions for turn in s.turns for call in turn.tools]
            if settings.gaps == "sampled"
            else []
        )

    def after(self, spec: TurnSpec) -> TurnSpec:
        """The turn with the tool times and wait to use."""
        scale, mode = self._settings.gap_scale, self._settings.gaps
        if mode == "recorded" and scale == 1.0:
            return spec
        if mode == "none":
            return replace(spec, tools=(), wait_s=0.0)
        tools = tuple(
            replace(
                call, seconds=scale * (self._rng.choice(self._pool) if self._pool else call.seconds)
            )
            for call in spec.tools
        )
        return replace(spec, tools=tools, wait_s=spec.wait_s * scale)
