"""The replay client: what it reads off answers, what it says, and when it distrusts itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies

from harness.live.dialect import decode_body, encode
from harness.live.lag import percentile
from harness.live.openai_chat import ChatCompletions
from harness.live.replay import Replayer, ReplaySettings
from harness.live.replay_answer import Outcome, StreamedAnswer
from harness.live.replay_run import ReplaySummary
from harness.live.replay_texts import SessionText, chat_body, chat_messages
from harness.live.sse import event_bytes
from harness.live.wire import Call, Request
from harness.live.words import words
from harness.sim.clock import Clock
from schedulers.types import Usage
from tests.live.test_virtual_run import Records
from tests.oracles.workloads_text import common_prefix, literal_prompts
from tests.workloads.strategies import families
from workloads.model import PromptBuilder, Segment, Session, ToolCall, TurnSpec


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event_bytes(encode({"id": "x", "choices": [choice]}))


USAGE = event_bytes(
    encode(
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 9,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 8},
            },
        }
    )
)
DONE = event_bytes(b"[DONE]")


def read(
    *parts: tuple[int, bytes],
    status: int = 200,
    broken: str | None = None,
    headers: dict[str, str] | None = None,
) -> Outcome:
    """An answer whose parts come at the given times."""
    clock = Clock()
    found: list[Outcome] = []
    answer = StreamedAnswer(clock, found.append)
    answer.head(status, headers or {})
    for time, part in parts:
        clock.now = time
        answer.data(part)
    if broken is None:
        answer.end()
    else:
        answer.lost(broken, unreachable=False)
    [outcome] = found
    return outcome


def test_times_and_text_of_an_answer() -> None:
    whole = chunk({"content": 'b "\\ é'})
    outcome = read(
        (100, chunk({"role": "assistant", "content": ""})),  # no token yet
        (200, chunk({"content": "a"}) + whole[:10]),
        (250, whole[10:30]),
        (900, whole[30:] + chunk({"content": "🙂"}, "length")),
        (950, USAGE + DONE),
        headers={
            "x-agentsched-replica": "r1",
            "x-agentsched-pause-ms": "1.500000",
            "x-agentsched-attempts": "2",
        },
    )
    assert outcome.ok
    assert (outcome.first_token, outcome.tokens) == (200, 3)
    assert outcome.text == 'ab "\\ é🙂'
    # The second token's event starts at 250 at the latest, the third comes at 900.
    assert outcome.longest_gap in (650, 700)
    assert outcome.usage == Usage(9, 8, 3)
    assert (outcome.replica, outcome.pause_ns, outcome.attempts) == ("r1", 1_500_000, 2)


def test_a_tool_call_alone_is_a_token() -> None:
    call = {"tool_calls": [{"index": 0, "function": {"name": "bash", "arguments": "{}"}}]}
    outcome = read((5, chunk({"role": "assistant"})), (7, chunk(call)), (9, DONE))
    assert (outcome.ok, outcome.first_token, outcome.text) == (True, 7, "")


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (read((1, chunk({"content": "a"}))), "the stream ended early"),
        (read((1, chunk({"content": "a"})), broken="reset"), "reset"),
        (read((1, chunk({"content": "a"}) + event_bytes(b'{"error":{"message":"oom"}}'))), "oom"),
        (read((1, b'{"error":{"message":"too long"}}'), status=400), "too long"),
        (read((1, b"<html>"), status=502), "HTTP status 502"),
    ],
)
def test_answers_that_failed(outcome: Outcome, error: str) -> None:
    assert not outcome.ok
    assert outcome.error == error


def test_prompts_repeat_what_the_trace_says() -> None:
    turns = (
        TurnSpec(10, 4, shared=(Segment("tools", 20, 80),)),
        TurnSpec(5, 4, kept_turn=0, kept_tokens=34),
        TurnSpec(5, 4, kept_turn=0, kept_tokens=32),
    )
    text = SessionText(Session("s", turns, "w", "generated"), salt="x")
    first = text.prompt(0)
    assert [(s.role, s.tokens) for s in first] == [("system", 20), ("user", 10)]
    assert first[0].text == words("x/tools", 20)
    text.answered("1234567812345678")
    second = text.prompt(1)
    assert second[:2] == first
    assert [(s.role, s.text) for s in second[2:]] == [
        ("assistant", "1234567812345678"),
        ("user", words("x/s#1", 5)),
    ]
    text.answered("abcd")
    third = text.prompt(2)  # keeps half of the first answer
    assert (third[2].role, third[2].text) == ("assistant", "12345678")
    assert third[3].text == words("x/s#2", 5)
    other = SessionText(Session("s", turns, "w", "generated"), salt="y")
    assert other.prompt(0)[0].text != first[0].text


def test_stretches_of_one_speaker_are_parts_of_one_message() -> None:
    turns = (TurnSpec(10, 4), TurnSpec(5, 4, kept_turn=0, kept_tokens=8))
    text = SessionText(Session("s", turns, "w", "generated"))
    text.prompt(0)
    text.answered("abcd")
    [message] = chat_messages(text.prompt(1))
    assert [part["text"] for part in message["content"]] == [words("/s#0", 8), words("/s#1", 5)]


def test_a_reply_that_was_not_kept_comes_back_in_other_words() -> None:
    turns = (
        TurnSpec(10, 4),
        TurnSpec(9, 4, kept_turn=0, kept_tokens=10),
        TurnSpec(3, 4, kept_turn=1, kept_tokens=19),
        TurnSpec(1, 4, kept_turn=2, kept_tokens=22),
        TurnSpec(0, 4, kept_turn=3, kept_tokens=23),
    )
    text = SessionText(Session("s", turns, "w", "generated"))
    lengths = []
    for index in range(len(turns)):
        lengths.append([(s.role, s.tokens) for s in text.prompt(index)])
        text.answered("abcd")
    first = ("user", 10)
    assert lengths[1] == [first, ("assistant", 4), ("user", 5)]
    # Room is left for one token of the user's; of one new token, the reply has it.
    assert lengths[2] == [*lengths[1], ("assistant", 2), ("user", 1)]
    assert lengths[3] == [*lengths[2], ("assistant", 1)]
    assert lengths[4] == lengths[3]  # the same prompt once more
    new = text.prompt(1)[1:]
    assert "".join(part.text for part in new) == words("/s#1", 9)


@settings(max_examples=100, deadline=None)
@given(families(), strategies.booleans())
def test_a_gateway_sees_the_replies_and_prefixes_of_the_trace(
    sessions: list[Session], silent: bool
) -> None:
    """As many replies as the simulator counts, and equal text wherever the trace has it."""
    for session in sessions:
        text = SessionText(session)
        replies, spelled = [], []
        for index, turn in enumerate(session.turns):
            line = text.prompt(index)
            body = chat_body("m", line, turn.output_tokens, {})
            read = ChatCompletions().read(decode_body(body), body)
            replies.append(len(read.replies))
            spelled.append("".join(piece.text for piece in read.pieces))
            text.answered("" if silent else words(f"answer {index}", turn.output_tokens))
        assert replies == [p.assistant_messages for p in PromptBuilder(session).prompts()]
        if silent:
            continue
        prompts, _ = literal_prompts(session)
        for i, prompt in enumerate(prompts):
            assert len(spelled[i]) == 4 * len(prompt)
            for j in range(i):
                shared = 4 * common_prefix(prompts[j], prompt)
                assert spelled[i][:shared] == spelled[j][:shared]


class Instant:
    """An endpoint that answers every request at once, with 2 tokens."""

    def send(self, request: Request, receiver: Any) -> Call:
        receiver.head(200, {})
        receiver.data(chunk({"content": "hi"}) + USAGE + DONE)
        receiver.end()
        return self

    def cancel(self) -> None: ...
    def pressure(self, slow: bool) -> None: ...
    def under_way(self) -> None: ...

    def catch_up(self) -> None: ...


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (ReplaySettings(), 6.0),  # 2 s and 1 s side by side, then 3 s, then 1 s of waiting
        (ReplaySettings(gap_scale=0.5), 3.0),
        (ReplaySettings(gaps="none"), 0.0),
    ],
)
def test_gaps(settings: ReplaySettings, expected: float) -> None:
    tools = (
        ToolCall("a", 2.0),
        ToolCall("b", 1.0, parallel=True),
        ToolCall("c", 3.0),
    )
    turns = (TurnSpec(10, 3, tools=tools, wait_s=1.0), TurnSpec(10, 3))
    clock, records = Clock(), Records()
    player = Replayer(
        [Session("s", turns, "w", "recorded")],
        workers=1,
        sender=Instant(),
        clock=clock,
        recorder=records,
        settings=settings,
    )
    player.start()
    while clock.step():
        pass
    first, second = records.turns
    assert (second.arrived - first.finished) / 1e9 == expected
    assert first.tool_s + first.wait_s == expected
    assert player.counts.wrong_length == 0


def test_sampled_gaps_are_the_traces_own_and_repeat() -> None:
    turns = tuple(TurnSpec(10, 3, tools=(ToolCall("a", float(s)),)) for s in (1, 2, 4, 8, 16))

    def gaps(seed: int) -> list[float]:
        records, clock = Records(), Clock()
        Replayer(
            [Session("s", turns, "w", "recorded")],
            workers=1,
            sender=Instant(),
            clock=clock,
            recorder=records,
            settings=ReplaySettings(gaps="sampled", seed=seed),
        ).start()
        while clock.step():
            pass
        return [turn.tool_s for turn in records.turns]

    assert gaps(1) == gaps(1)
    assert set(gaps(1)) <= {1.0, 2.0, 4.0, 8.0, 16.0}
    assert gaps(1) != gaps(2)


GOOD = ReplaySummary(
    makespan_ns=1,
    sessions=1,
    turns=2,
    output_tokens=3,
    wrong_length=0,
    workers=4,
    peak_active=4,
    peak_in_flight=4,
    ttft_mean_ms=200.0,
    ttft_p99_ms=300.0,
    loop_lag_p50_ms=0.1,
    loop_lag_p99_ms=9.9,
    loop_lag_max_ms=50.0,
    dispatch_lag_p99_ms=9.9,
    cpu_s=1.0,
    rss_mb=50.0,
    interrupted=False,
)


def test_when_a_replay_must_not_be_used() -> None:
    """5 % of 200 ms are 10 ms; for quick engines 5 ms are allowed whatever the share."""
    assert GOOD.problems == []
    for changes, said in (
        ({"loop_lag_p99_ms": 10.1}, "event loop"),
        ({"dispatch_lag_p99_ms": 10.1}, "dispatch"),
        ({"peak_active": 3}, "only 3 of 4 workers"),
        ({"wrong_length": 1}, "1 of 2 answers"),
    ):
        [problem] = replace(GOOD, **changes).problems
        assert said in problem
    quick = replace(GOOD, ttft_mean_ms=10.0, loop_lag_p99_ms=4.9, dispatch_lag_p99_ms=4.9)
    assert quick.problems == []


def test_percentiles_by_nearest_rank() -> None:
    values = list(range(1, 101))
    assert [percentile(values, p) for p in (50, 99, 100)] == [50, 99, 100]
    assert percentile([7], 99) == 7
    assert percentile([], 50) == 0
