"""A request inside the engine, and the decoding ones as a group that advances in lock step."""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heappush

from harness.sim.block_cache import Holding
from harness.sim.content import Line
from harness.sim.engine_types import EngineRequest


class Sequence:
    """State of one request. While it is `grouped`, its token count follows from the group's step.

    `tokens`: prompt and output so far; `computed`: those whose KV exists. A decoding sequence has
    all but its last token computed.
    """

    __slots__ = (
        "arrived_ps",
        "base",
        "cached",
        "computed",
        "decoding",
        "ends",
        "final",
        "gap_ps",
        "gone",
        "grouped",
        "holding",
        "id",
        "in_api",
        "joined",
        "keep_blocks",
        "last_token_ps",
        "line",
        "place",
        "preemptions",
        "prefill_only",
        "priority",
        "prompt",
        "remote",
        "retiring",
        "running",
        "tokens",
        "twins",
    )

    def __init__(self, request: EngineRequest, arrived_ps: int) -> None:
        self.id = request.id
        self.line: Line = request.line
        self.prompt = request.prompt_tokens
        output = 1 if request.prefill_only else request.output_tokens
        self.final = request.prompt_tokens + output
        self.priority = request.priority
        self.arrived_ps = arrived_ps
        self.prefill_only = request.prefill_only
        self.keep_blocks = request.keep_blocks
        self.remote = min(request.remote_tokens, request.prompt_tokens)
        """Prompt tokens that may come from elsewhere; 0 once they have, or will not."""
        self.in_api = True
        self.place = 0
        """Position in the running order: sequences are only ever appended to it."""
        self.tokens = request.prompt_tokens
        self.computed = 0
        self.holding: Holding | None = None
        self.decoding = False
        self.grouped = False
        self.running = False
        self.retiring = False
        """All of its tokens are scheduled, the last one is being computed."""
        self.gone = False
        self.cached = -1
        self.preemptions = 0
        self.last_token_ps = -1
        self.gap_ps = -1
        self.base = 0
        self.joined = 0
        self.ends = 0
        self.twins: set[Sequence] | None = None

    def __lt__(self, other: Sequence) -> bool:
        """Order of the priority policy."""
        return (self.priority, self.arrived_ps, self.id) < (
            other.priority,
            other.arrived_ps,
            other.id,
        )


class DecodeGroup:
    """Decoding sequences that all get one token in every step.

    `step` counts executed steps; a member has `step + base` tokens, so a run of steps costs the
    same however many members there are.
    """

    __slots__ = (
        "_ends",
        "_longest",
        "_marks",
        "_phases",
        "ahead",
        "block_size",
        "context",
        "count",
        "end_ps",
        "step",
    )

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.step = 0
        self.end_ps = 0
        self.clear()

    def clear(self) -> None:
        self.ahead = 0
        """Steps after `step` for which the members have blocks: 1 while a step is composed."""
        self.count = 0
        self.context = 0
        """Sum of the members' tokens."""
        self._phases = [0] * self.block_size
        """Members by the step (modulo block size) at which they need a new block."""
        self._ends: list[tuple[int, int, Sequence]] = []
        self._marks: list[int] = []
        self._longest: list[int] = []
        """Longest step after mark i-1 up to mark i, decreasing: suffix maxima by bisection."""

    def add(self, sequence: Sequence) -> None:
        """Take in a sequence that got a token at the end of the last step."""
        base = sequence.base = sequence.tokens - self.step
        self._phases[(1 - base) % self.block_size] += 1
        self.count += 1
        self.context += sequence.tokens
        sequence.joined = self.step
        sequence.ends = self.step + sequence.final - sequence.tokens
        sequence.grouped = True
        heappush(self._ends, (sequence.ends, sequence.place, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Let it go between two steps, its token count, blocks and gap brought up to date."""
        tokens = sequence.tokens = self.step + sequence.base
        sequence.computed = tokens - 1
        if sequence.joined < self.step:
            sequence.last_token_ps = self.end_ps
        sequence.grouped = False
        holding = sequence.holding
        assert holding is not None
        holding.blocks = -(-(tokens - 1 + self.ahead) // self.block_size)
        self._phases[(1 - sequence.base) % self.block_size] -= 1
        self.count -= 1
        self.context -= tokens
        first = bisect_right(self._marks, sequence.joined)
        if first < len(self._longest) and self._longest[first] > sequence.gap_ps:
            sequence.gap_ps = self._longest[first]
        if self.count == 0:
            self._ends.clear()
            self._marks.clear()
            self._longest.clear()
        elif len(self._ends) > 2 * self.count + 64:
            self._ends = [entry for entry in self._ends if _current(entry)]
            heapify(self._ends)

    def advance(self, steps: int, longest_ps: int, end_ps: int) -> None:
        """`steps` steps were executed, of `longest_ps` at most, the last until `end_ps`."""
        self.step += steps
        self.ahead = 0
        self.end_ps = end_ps
        if self.count == 0:
            return
        self.context += self.count * steps
        longest = self._longest
        while longest and longest[-1] <= longest_ps:
            longest.pop()
            self._marks.pop()
        longest.append(longest_ps)
        self._marks.append(self.step)

    def new_blocks(self, first: int, end: int) -> int:
        """Blocks that the steps `first` to `end` - 1 from now on will allocate."""
        rounds, rest = divmod(end - first, self.block_size)
        blocks = rounds * self.count
        if rest:
            phases, size = self._phases, self.block_size
            at = (self.step + first) % size
            if at + rest <= size:
                blocks += sum(phases[at : at + rest])
            else:
                blocks += sum(phases[at:]) + sum(phases[: at + rest - size])
        return blocks

    def steps_within(self, blocks: int, steps: int) -> int:
        """How many of the next `steps` steps fit if those after the first may take `blocks`."""
        rounds = (steps - 2) // self.block_size + 1
        if rounds * self.count <= blocks or self.new_blocks(1, steps) <= blocks:
            return steps
        low, high = 1, steps
        while high - low > 1:
            middle = (low + high) // 2
            if self.new_blocks(1, middle) > blocks:
                high = middle
            else:
                low = middle
        return low

    def steps_left(self) -> int:
        """Steps until the first member is done."""
        ends = self._ends
        while not _current(ends[0]):
            heappop(ends)
        return ends[0][0] - self.step

    def pop_done(self) -> list[Sequence]:
        """Members that have all their tokens, in running order; they still have to be removed."""
        done: list[Sequence] = []
        ends, step = self._ends, self.step
        while ends and ends[0][0] <= step:
            entry = heappop(ends)
            if _current(entry):
                done.append(entry[2])
        return done


def _current(entry: tuple[int, int, Sequence]) -> bool:
    """Whether a (end, place, member) entry is not from before it left and came back."""
    end, place, sequence = entry
    return sequence.grouped and sequence.ends == end and sequence.place == place
