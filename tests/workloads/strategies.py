"""Random sessions for property tests: every shape the model allows, small counts."""

from __future__ import annotations

from hypothesis import strategies as st

from workloads.model import Segment, Session, ToolCall, TurnSpec

SECONDS = st.floats(0, 1e6, allow_nan=False)
NAMES = st.text(
    st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=12
).filter(str.isprintable)
SHARED = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 6), st.integers(0, 40)),
    max_size=3,
    unique_by=lambda part: part[0],
).map(lambda parts: tuple(Segment(*part) for part in parts))
TOOLS = st.lists(
    st.builds(
        ToolCall,
        name=NAMES,
        seconds=SECONDS,
        hint_s=st.none() | SECONDS,
        parallel=st.booleans(),
    ),
    max_size=3,
).map(tuple)


@st.composite
def turns(draw: st.DrawFn) -> tuple[TurnSpec, ...]:
    """A session's turns: appended, cut, branched from an old turn, or started anew."""
    result: list[TurnSpec] = []
    for index in range(draw(st.integers(1, 6))):
        kept_turn = draw(st.none() | st.integers(0, index - 1)) if index else None
        kept = 0
        shared: tuple[Segment, ...] = ()
        if kept_turn is None:
            shared = draw(SHARED)
        else:
            before = result[kept_turn]
            whole = before.prompt_tokens + before.output_tokens
            kept = draw(st.just(whole) | st.integers(0, whole))
        least = 0 if kept or shared else 1
        result.append(
            TurnSpec(
                new_tokens=draw(st.integers(least, 7)),
                output_tokens=draw(st.integers(1, 7)),
                kept_turn=kept_turn,
                kept_tokens=kept,
                shared=shared,
                new_bytes=draw(st.none() | st.integers(0, 50)),
                visible=draw(st.booleans()),
                tools=draw(TOOLS),
                wait_s=draw(SECONDS),
                compaction=draw(st.booleans()),
            )
        )
    return tuple(result)


@st.composite
def families(draw: st.DrawFn) -> list[Session]:
    """A few sessions, some of them sub-agents of earlier ones."""
    ids = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    result: list[Session] = []
    for name in ids:
        parent = draw(st.none() | st.sampled_from(result)) if result else None
        result.append(
            Session(
                id=name,
                turns=draw(turns()),
                workload=draw(NAMES),
                origin=draw(st.sampled_from(["recorded", "generated"])),
                parent=parent.id if parent else None,
                spawn_turn=draw(st.integers(0, len(parent.turns) - 1)) if parent else None,
                arrival_s=None if parent else draw(st.none() | SECONDS),
                setup_s=draw(SECONDS),
                deadline_s=draw(st.none() | SECONDS),
            )
        )
    return result
