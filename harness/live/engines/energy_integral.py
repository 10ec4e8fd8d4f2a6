"""Energy from power readings, with its error.

Trapezoids between readings. Two errors are added:

- of the rule: a third of the difference to trapezoids over every other reading. For a smooth
  curve the error falls with the square of the spacing, so that difference is three times it
  (Richardson); power is not smooth, so this is an estimate and not a bound;
- of the readings: 5 % of each, NVIDIA's figure for nvmlDeviceGetPowerUsage (NVML API reference),
  taken to have the same sign throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

READING_ERROR = 0.05


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules, plus or minus."""

    joules: float
    error_j: float
    seconds: float
    readings: int

    def __add__(self, other: Energy) -> Energy:
        """Of two GPUs over the same time; errors add up, as they may share a sign."""
        return Energy(
            self.joules + other.joules,
            self.error_j + other.error_j,
            max(self.seconds, other.seconds),
            self.readings + other.readings,
        )


class EnergyIntegral:
    """Takes readings in the order of time; holds no more than three of them."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._even: tuple[int, float] | None = None
        self._first_ns = 0
        self._fine = self._coarse = 0.0
        self._readings = 0

    def add(self, now_ns: int, watts: float) -> None:
        """A reading. Raises ValueError if it is not later than the last, or negative."""
        if watts < 0:
            raise ValueError(f"{watts} W is negative")
        if self._last is None or self._even is None:
            self._first_ns = now_ns
            self._even = (now_ns, watts)
        else:
            if now_ns <= self._last[0]:
                raise ValueError("readings must come in the order of time")
            self._fine += _trapezoid(self._last, (now_ns, watts))
            if self._readings % 2 == 0:  # the third, fifth, ... reading
                self._coarse += _trapezoid(self._even, (now_ns, watts))
                self._even = (now_ns, watts)
        self._last = (now_ns, watts)
        self._readings += 1

    def result(self) -> Energy | None:
        """So far; None before the second reading."""
        if self._last is None or self._even is None or self._readings < 2:
            return None
        # With an even number of readings, the last interval has no partner: the same in both.
        coarse = self._coarse + _trapezoid(self._even, self._last)
        rule = abs(self._fine - coarse) / 3
        seconds = (self._last[0] - self._first_ns) / 1e9
        error = rule + READING_ERROR * self._fine
        return Energy(self._fine, error, seconds, self._readings)


def _trapezoid(left: tuple[int, float], right: tuple[int, float]) -> float:
    return (right[0] - left[0]) / 1e9 * (left[1] + right[1]) / 2
