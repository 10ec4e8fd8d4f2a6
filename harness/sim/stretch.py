"""A stretch of equal decode steps, executed in one go with exact times."""

from __future__ import annotations


class Stretch:
    """`steps` steps from `start_ps` on, each of `count` sequences that grow by a token a step.

    The first step's contexts sum to `context`; a step with contexts S takes fixed + slope * S
    picoseconds. A step with prefills is a stretch of one step with slope 0.
    """

    __slots__ = ("_context", "_count", "_fixed", "_slope", "end_ps", "start_ps", "steps")

    def __init__(self, start_ps: int, fixed: int, slope: int, count: int, context: int) -> None:
        self.start_ps = start_ps
        self.steps = 1
        self._fixed = fixed
        self._slope = slope
        self._count = count
        self._context = context
        self.end_ps = start_ps + self.cost(1)

    def cost(self, steps: int) -> int:
        """Duration of the first `steps` steps."""
        slope = self._slope
        total = steps * (self._fixed + slope * self._context)
        if steps > 1 and slope:
            total += slope * self._count * (steps * (steps - 1) // 2)
        return total

    def longest(self, steps: int) -> int:
        """Duration of the longest of the first `steps` steps."""
        first = self._fixed + self._slope * self._context
        return max(first, first + self._slope * self._count * (steps - 1))

    def resize(self, steps: int) -> None:
        """Make it end after `steps` steps."""
        self.steps = steps
        self.end_ps = self.start_ps + self.cost(steps)

    def begin_at(self, steps: int) -> None:
        """Leave out the first `steps` steps."""
        self.start_ps += self.cost(steps)
        self._context += self._count * steps
        self.steps -= steps

    def started_before(self, time_ps: int) -> int:
        """How many steps start before `time_ps`; the first one counts in any case."""
        wanted = time_ps - self.start_ps
        low, high = 0, self.steps - 1
        if high == 0 or self.cost(high) < wanted:
            return self.steps
        # cost(low) < wanted <= cost(high), or wanted <= 0.
        while high - low > 1:
            middle = (low + high) // 2
            if self.cost(middle) < wanted:
                low = middle
            else:
                high = middle
        return high

    def done_by(self, time_ps: int) -> int:
        """How many steps end by `time_ps`."""
        if self.end_ps <= time_ps:
            return self.steps
        spent = time_ps - self.start_ps
        low, high = 0, self.steps
        while high - low > 1:
            middle = (low + high) // 2
            if self.cost(middle) <= spent:
                low = middle
            else:
                high = middle
        return low
