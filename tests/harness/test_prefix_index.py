"""The gateway's prefix index against prompts spelled out token by token."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.control.prefix_index import PrefixIndex
from schedulers.types import PromptRef, PromptRun
from tests.oracles.prefixes import SlowPrefixes

# Names follow position, as real text does: what comes first in one prompt is not the middle of
# another under the same name.
RUN = st.tuples(st.integers(0, 2), st.integers(1, 4))
PROMPTS = st.lists(RUN, min_size=1, max_size=4).map(
    lambda runs: PromptRef(
        tuple(PromptRun(f"{depth}{name}", n, n * 4) for depth, (name, n) in enumerate(runs))
    )
)
STEPS = st.lists(st.tuples(PROMPTS, st.sampled_from(["r0", "r1"])), max_size=25)


@settings(max_examples=400, deadline=None)
@given(STEPS, PROMPTS)
def test_match_equals_the_longest_common_prefix(
    steps: list[tuple[PromptRef, str]], probe: PromptRef
) -> None:
    index, slow = PrefixIndex(), SlowPrefixes()
    for number, (prompt, replica) in enumerate(steps):
        index.insert(f"s{number % 5}", prompt, replica)
        slow.insert(prompt, replica)
    for replica in ("r0", "r1"):
        assert index.match(probe, replica) == slow.match(probe, replica)
    index.forget("r0")
    assert index.match(probe, "r0") == 0
    assert index.match(probe, "r1") == slow.match(probe, "r1")


def test_text_of_closed_sessions_is_dropped_beyond_the_limit_and_shared_text_is_kept() -> None:
    index = PrefixIndex(idle_limit=2)

    def prompt(session: str) -> PromptRef:
        return PromptRef((PromptRun("tools", 10, 40), PromptRun(session, 5, 20)))

    for name in "abcd":
        index.insert(name, prompt(name), "r0")
    for name in "abc":
        index.close(name)
    # a, b, c are idle: the oldest goes; the tools are still used by d.
    assert [index.match(prompt(name), "r0") for name in "abcd"] == [10, 15, 15, 15]
    index.close("d")
    index.close("never seen")
    assert index.match(prompt("d"), "r0") == 15
