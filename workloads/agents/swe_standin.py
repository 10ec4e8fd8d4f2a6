"""Stand-in tasks in the shape of SWE-bench: eight small repositories of ours, each with one bug.

They exercise agents, sandboxes and gateways where the real task set or its images cannot be had;
they say nothing about how well a model solves real issues. All are written for this project.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True, slots=True)
class Fix:
    """What mends the bug: text to be replaced, once, in one file."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class StandIn:
    """One task."""

    id: str
    problem: str
    """Problem statement, as the agent gets it; its first line is found in no other."""
    files: Mapping[str, str]
    """The repository: path and text. Its tests fail before the fix and pass after it."""
    fix: Fix

    @property
    def title(self) -> str:
        return self.problem.partition("\n")[0]

    @property
    def module(self) -> str:
        return self.fix.path


TEST_COMMAND = "python3 -m unittest discover -s tests -t ."


def _task(
    name: str, title: str, report: str, module: str, fix: tuple[str, str], test: str
) -> StandIn:
    package, path = name.replace("-", "_"), f"{name.replace('-', '_')}/core.py"
    module, test = dedent(module).lstrip(), dedent(test).strip()
    head = f"import unittest\n\nfrom {package} import core\n\n\nclass Test(unittest.TestCase):\n"
    body = "\n".join(f"    {line}" if line else "" for line in test.splitlines())
    files = {
        "README.md": f"# {package}\n\nTests: `{TEST_COMMAND}`\n",
        f"{package}/__init__.py": "",
        path: module,
        "tests/__init__.py": "",
        "tests/test_core.py": f"{head}{body}\n",
    }
    assert module.count(fix[0]) == 1
    return StandIn(
        id=f"standin__{name}-1",
        problem=f"{title}\n\n{dedent(report).strip()}\n",
        files=files,
        fix=Fix(path, *fix),
    )


def standin_tasks() -> tuple[StandIn, ...]:
    """All tasks, in the order they are taken up."""
    return (
        _task(
            "interval-merge",
            "merge() loses the end of an interval that contains the next one",
            """
            `merge([(1, 10), (2, 3)])` gives `[(1, 3)]`; it should be `[(1, 10)]`. Intervals that
            only overlap are merged well.
            """,
            """
            def merge(intervals):
                \"\"\"Overlapping or touching intervals as one, in order.\"\"\"
                merged = []
                for start, end in sorted(intervals):
                    if merged and start <= merged[-1][1]:
                        merged[-1] = (merged[-1][0], end)
                    else:
                        merged.append((start, end))
                return merged


            def length(intervals):
                \"\"\"Length that the intervals cover together.\"\"\"
                return sum(end - start for start, end in merge(intervals))
            """,
            ("(merged[-1][0], end)", "(merged[-1][0], max(end, merged[-1][1]))"),
            """
            def test_contained(self):
                self.assertEqual(core.merge([(1, 10), (2, 3)]), [(1, 10)])

            def test_overlapping(self):
                self.assertEqual(core.merge([(5, 8), (1, 6)]), [(1, 8)])
                self.assertEqual(core.length([(0, 4), (1, 2), (6, 7)]), 5)
            """,
        ),
        _task(
            "roman-numbers",
            "Roman numerals of 4 and 9 are written with four strokes",
            """
            `to_roman(9)` returns `VIIII`. Expected is `IX`; likewise 4 and 14. Numbers such as 40
            and 90 are right.
            """,
            """
            PARTS = (
                (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"),
                (50, "L"), (40, "XL"), (10, "X"), (5, "V"), (1, "I"),
            )


            def to_roman(number):
                \"\"\"A number from 1 to 3999 in Roman numerals.\"\"\"
                if not 0 < number < 4000:
                    raise ValueError(f"{number} is not from 1 to 3999")
                text = ""
                for value, letters in PARTS:
                    while number >= value:
                        text += letters
                        number -= value
                return text
            """,
            ('(5, "V"), (1, "I"),', '(9, "IX"), (5, "V"), (4, "IV"), (1, "I"),'),
            """
            def test_subtracted(self):
                self.assertEqual([core.to_roman(n) for n in (4, 9, 14)], ["IV", "IX", "XIV"])

            def test_others(self):
                self.assertEqual(core.to_roman(1987), "MCMLXXXVII")
                self.assertRaises(ValueError, core.to_roman, 0)
            """,
        ),
        _task(
            "least-recent",
            "Reading an entry of the LRU cache does not keep it from being evicted",
            """
            With room for two entries: put a, put b, get a, put c. Then `a` is gone, though `b` was
            used longer ago.
            """,
            """
            from collections import OrderedDict


            class Cache:
                \"\"\"Keeps the entries that were used last.\"\"\"

                def __init__(self, room):
                    self.room = room
                    self._entries = OrderedDict()

                def put(self, key, value):
                    self._entries[key] = value
                    self._entries.move_to_end(key)
                    while len(self._entries) > self.room:
                        self._entries.popitem(last=False)

                def get(self, key, default=None):
                    return self._entries.get(key, default)
            """,
            (
                "        return self._entries.get(key, default)",
                "        if key not in self._entries:\n            return default\n"
                "        self._entries.move_to_end(key)\n        return self._entries[key]",
            ),
            """
            def test_reading_counts_as_use(self):
                cache = core.Cache(2)
                cache.put("a", 1)
                cache.put("b", 2)
                self.assertEqual(cache.get("a"), 1)
                cache.put("c", 3)
                self.assertEqual((cache.get("a"), cache.get("b")), (1, None))
            """,
        ),
        _task(
            "csv-line",
            "Doubled quotes in a quoted CSV field are not read as one quote",
            '''
            `split('a,"say ""hi""",b')` returns `['a', 'say hi', 'b']`. RFC 4180 says that the
            middle field is `say "hi"`.
            ''',
            """
            def split(line):
                \"\"\"Fields of one line of comma-separated values.\"\"\"
                fields, field, quoted = [], "", False
                position = 0
                while position < len(line):
                    letter = line[position]
                    if letter == '"':
                        quoted = not quoted
                    elif letter == "," and not quoted:
                        fields.append(field)
                        field = ""
                    else:
                        field += letter
                    position += 1
                return [*fields, field]
            """,
            (
                "        if letter == '\"':\n            quoted = not quoted\n",
                "        if quoted and line[position : position + 2] == '\"\"':\n"
                "            field += '\"'\n            position += 1\n"
                "        elif letter == '\"':\n            quoted = not quoted\n",
            ),
            '''
            def test_doubled_quotes(self):
                self.assertEqual(core.split('a,"say ""hi""",b'), ["a", 'say "hi"', "b"])

            def test_plain(self):
                self.assertEqual(core.split('a,"b,c",'), ["a", "b,c", ""])
            ''',
        ),
        _task(
            "moving-mean",
            "The moving mean drifts after the window has filled up",
            """
            `MovingMean(2)` fed 1, 2, 3, 4 ends at 5.0 instead of 3.5: values that have left the
            window still count.
            """,
            """
            from collections import deque


            class MovingMean:
                \"\"\"Mean of the last `size` values.\"\"\"

                def __init__(self, size):
                    self._values = deque(maxlen=size)
                    self._sum = 0.0

                def add(self, value):
                    self._values.append(value)
                    self._sum += value
                    return self._sum / len(self._values)
            """,
            (
                "        self._values.append(value)\n",
                "        if len(self._values) == self._values.maxlen:\n"
                "            self._sum -= self._values[0]\n        self._values.append(value)\n",
            ),
            """
            def test_values_leave(self):
                mean = core.MovingMean(2)
                self.assertEqual([mean.add(v) for v in (1, 2, 3, 4)], [1.0, 1.5, 2.5, 3.5])
            """,
        ),
        _task(
            "task-order",
            "order() does not know tasks that are only needed by others",
            """
            `order({"a": ["b"]})` raises KeyError: 'b'. A task that needs nothing itself need not be
            listed; the answer should be `["b", "a"]`.
            """,
            """
            def order(needs):
                \"\"\"Tasks in an order in which each comes after those it needs.\"\"\"
                done = []

                def visit(task):
                    if task not in done:
                        for need in needs[task]:
                            visit(need)
                        done.append(task)

                for task in sorted(needs):
                    visit(task)
                return done
            """,
            ("needs[task]", "needs.get(task, ())"),
            """
            def test_unlisted(self):
                self.assertEqual(core.order({"a": ["b"]}), ["b", "a"])

            def test_chain(self):
                needs = {"a": ["b"], "b": ["c"], "c": [], "d": ["a", "c"]}
                self.assertEqual(core.order(needs), ["c", "b", "a", "d"])
            """,
        ),
        _task(
            "word-wrap",
            "wrap() puts an empty line before a word longer than the width",
            """
            `wrap("extraordinary day", 5)` returns `["", "extraordinary", "day"]`. The first line
            should not be there.
            """,
            """
            def wrap(text, width):
                \"\"\"Lines of at most `width` letters; longer words stand alone.\"\"\"
                lines, line = [], ""
                for word in text.split():
                    if len(line) + len(word) + bool(line) > width:
                        lines.append(line)
                        line = word
                    else:
                        line = f"{line} {word}" if line else word
                return [*lines, line] if line else lines
            """,
            ("            lines.append(line)\n", "            lines += [line] if line else []\n"),
            """
            def test_long_word(self):
                self.assertEqual(core.wrap("extraordinary day", 5), ["extraordinary", "day"])

            def test_lines(self):
                self.assertEqual(core.wrap("a bc def", 4), ["a bc", "def"])
                self.assertEqual(core.wrap("", 4), [])
            """,
        ),
        _task(
            "retry-delay",
            "Delays between tries grow beyond the limit that the caller set",
            """
            `delays(5, first=1, most=5)` gives 1, 2, 4, 8, 16. From the fourth on it should be 5.
            """,
            """
            def delays(tries, first=1.0, factor=2.0, most=60.0):
                \"\"\"Seconds to wait before each of a number of tries, growing up to `most`.\"\"\"
                found, delay = [], first
                for _ in range(tries):
                    found.append(delay)
                    delay = delay * factor
                return found
            """,
            ("found.append(delay)", "found.append(min(delay, most))"),
            """
            def test_limit(self):
                self.assertEqual(core.delays(5, first=1, most=5), [1, 2, 4, 5, 5])

            def test_growth(self):
                self.assertEqual(core.delays(3, first=3), [3, 6, 12])
            """,
        ),
    )
