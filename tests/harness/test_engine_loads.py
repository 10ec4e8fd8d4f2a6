"""Requests whose KV comes from elsewhere, and blocks kept for others to copy."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.sim.async_engine import engine_for
from harness.sim.content import ContentIndex
from harness.sim.engine import Engine
from harness.sim.engine_types import EngineEvent, EngineParams, EngineRequest, StepTime
from tests.harness.engine_workloads import CoarseTime
from tests.harness.simulated import MS, FlatStep

PARAMS = EngineParams(block_size=4, null_blocks=0, async_scheduling=False)
"""Steps are composed between steps, so that times by hand stay short."""


def request(
    contents: ContentIndex, number: int, prompt: int, output: int, **more: int | bool
) -> EngineRequest:
    line = contents.intern([(f"text{number}", prompt + output)])
    return EngineRequest(number, line, prompt, output, **more)  # type: ignore[arg-type]


def drain(engine: Engine, until: int) -> list[EngineEvent]:
    events: list[EngineEvent] = []
    while (at := engine.next_event_time()) is not None and at <= until:
        events += engine.advance(at)
    return events + engine.advance(until)


def test_a_load_by_hand() -> None:
    """A prompt of 10 tokens, all of which are elsewhere: 3 blocks are taken at once, the KV comes
    at 7 ms, the last token is computed again (10 + 1 ms), two more follow at 10 ms each."""
    contents = ContentIndex(4)
    engine = Engine(PARAMS, FlatStep(), 4, contents)
    engine.submit(request(contents, 1, 10, 3, remote_tokens=10), 0)
    assert engine.next_event_time() == 1
    [load] = engine.advance(1)
    assert (load.kind, load.id, load.load_tokens, load.cached_tokens) == ("loading", 1, 10, 0)
    assert engine.next_event_time() is None  # nothing to do until the KV is there
    assert engine.state().held_blocks == 3
    engine.advance(7 * MS)
    engine.loaded(1, 7 * MS)
    events = drain(engine, 100 * MS)
    assert [(e.kind, e.time) for e in events] == [
        ("first_token", 18 * MS),
        ("finished", 38 * MS),
    ]
    assert engine.state().prefill_tokens == 1
    assert engine.state().held_blocks == 0
    # What came is in the prefix cache now: the same prompt loads nothing and computes 2 tokens.
    again = replace(request(contents, 1, 10, 3, remote_tokens=8), id=2)
    engine.submit(again, 100 * MS)
    events = drain(engine, 200 * MS)
    assert [e.kind for e in events] == ["first_token", "finished"]
    assert events[0].cached_tokens == 8
    assert events[0].time == 112 * MS


def test_others_run_while_one_loads_and_it_then_goes_first() -> None:
    contents = ContentIndex(4)
    engine = Engine(PARAMS, FlatStep(), 100, contents)
    engine.submit(request(contents, 1, 8, 1, remote_tokens=8), 0)
    engine.submit(request(contents, 2, 10, 9), 0)
    [load] = engine.advance(1)
    assert load.id == 1
    events = drain(engine, 35 * MS)  # 2: 20 ms, then 30 ms
    assert [(e.id, e.kind, e.time) for e in events] == [(2, "first_token", 20 * MS)]
    engine.loaded(1, 35 * MS)
    engine.submit(request(contents, 3, 5, 1), 35 * MS)
    events = drain(engine, 200 * MS)
    # The step from 40 ms on: 1 token of request 1, 5 of request 3: 16 ms.
    assert [(e.id, e.kind, e.time) for e in events[:4]] == [
        (1, "first_token", 56 * MS),
        (1, "finished", 56 * MS),
        (3, "first_token", 56 * MS),
        (3, "finished", 56 * MS),
    ]


def test_kept_blocks_make_others_wait_until_they_are_released() -> None:
    contents = ContentIndex(4)
    engine = Engine(PARAMS, FlatStep(), 4, contents)
    leg = request(contents, 1, 9, 5, prefill_only=True, keep_blocks=True)
    engine.submit(leg, 0)
    engine.submit(request(contents, 2, 8, 1), 0)
    events = drain(engine, 60 * MS)
    assert [(e.id, e.kind, e.time) for e in events] == [(1, "finished", 19 * MS)]
    assert engine.state().held_blocks == 3
    assert engine.next_event_time() is None
    engine.release(1, 60 * MS)
    engine.release(1, 60 * MS)
    events = drain(engine, 100 * MS)
    assert [(e.id, e.kind, e.time) for e in events] == [
        (2, "first_token", 78 * MS),
        (2, "finished", 78 * MS),
    ]
    assert engine.state().held_blocks == 0


def test_aborting_a_request_that_loads_frees_its_blocks() -> None:
    contents = ContentIndex(4)
    engine = Engine(PARAMS, FlatStep(), 4, contents)
    engine.submit(request(contents, 1, 12, 1, remote_tokens=12), 0)
    engine.submit(request(contents, 2, 8, 1), 0)
    engine.advance(1)
    assert engine.state().held_blocks == 3
    engine.abort(1, 5 * MS)
    engine.loaded(1, 6 * MS)
    events = drain(engine, 50 * MS)
    assert [(e.id, e.kind) for e in events] == [(2, "first_token"), (2, "finished")]
    assert engine.state().held_blocks == 0


LOADS = st.lists(
    st.tuples(
        st.integers(0, 400),  # arrival, ms
        st.integers(1, 30),  # prompt
        st.integers(1, 40),  # output
        st.integers(0, 30),  # remote
        st.sampled_from(["plain", "keep", "shared"]),
        st.sampled_from([None, None, None, 50]),  # aborted after, ms
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(
    LOADS,
    st.integers(0, 10**6),
    st.integers(0, 3),
    st.integers(0, 20),
    st.booleans(),
    st.sampled_from((FlatStep(), CoarseTime(99_991, 37))),
)
def test_fast_forward_changes_nothing_and_no_block_is_lost(
    loads: list[tuple[int, int, int, int, str, int | None]],
    seed: int,
    delay: int,
    blocks: int,
    ahead: bool,
    time: StepTime,
) -> None:
    """Steps of the second step-time model do not start at whole nanoseconds."""

    def run(fast: bool) -> list[tuple[int, int, str, int]]:
        rng = random.Random(seed)
        contents = ContentIndex(4)
        params = replace(
            PARAMS, fast_forward=fast, output_delay_ps=delay * 10**9, async_scheduling=ahead
        )
        engine = engine_for(params, time, 20 + blocks, contents)
        todo: list[tuple[int, str, int, EngineRequest | None]] = []
        for number, (at, prompt, output, remote, kind, abort) in enumerate(loads):
            segments = [(f"t{number}", prompt + output)]
            if kind == "shared":
                segments = [("common", min(prompt, 9)), *segments]
            tokens = prompt + (min(prompt, 9) if kind == "shared" else 0)
            todo.append(
                (
                    at * MS,
                    "submit",
                    number,
                    EngineRequest(
                        number,
                        contents.intern(segments),
                        tokens,
                        output,
                        prefill_only=kind == "keep",
                        keep_blocks=kind == "keep",
                        remote_tokens=remote,
                    ),
                )
            )
            if abort is not None:
                todo.append(((at + abort) * MS, "abort", number, None))
        seen: list[tuple[int, int, str, int]] = []
        for _ in range(5000):
            todo.sort(key=lambda item: (item[0], item[2], item[1]))
            wake = engine.next_event_time()
            if not todo and wake is None:
                break
            now = min(([wake] if wake is not None else []) + ([todo[0][0]] if todo else []))
            for event in engine.advance(now):
                seen.append((event.time, event.id, event.kind, event.load_tokens))
                if event.kind == "loading":
                    assert event.time <= now <= event.time + 1
                    todo.append((now + rng.randrange(1, 60) * MS, "loaded", event.id, None))
                if event.kind == "finished" and loads[event.id][4] == "keep":
                    todo.append((now + rng.randrange(1, 60) * MS, "release", event.id, None))
            todo.sort(key=lambda item: (item[0], item[2], item[1]))
            while todo and todo[0][0] <= now:
                _, what, number, wanted = todo.pop(0)
                if wanted is not None:
                    engine.submit(wanted, now)
                elif what == "loaded":
                    engine.loaded(number, now)
                elif what == "release":
                    engine.release(number, now)
                else:
                    engine.abort(number, now)
                    engine.release(number, now)
        else:
            raise AssertionError("it never ends")
        state = engine.state()
        assert (state.running, state.waiting, state.held_blocks) == (0, 0, 0)
        return seen

    fast, slow = run(True), run(False)
    assert fast == slow
    ended = {number for _, number, kind, _ in fast if kind in ("finished", "rejected")}
    assert ended >= {n for n, load in enumerate(loads) if load[5] is None}
