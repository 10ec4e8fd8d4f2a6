"""Stand-in tasks for Terminal-Bench: eight small tasks of our own, in Harbor's task format.

They exercise loaders, environments, agents and verifiers where the real task set cannot be had.
They say nothing of how good an agent is. Standard library only.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NAME = "terminal-bench-standin"

AGENT_TIMEOUT_S = 300.0
VERIFIER_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class StandinTask:
    """One task; its agent starts in /app."""

    name: str
    """Stands in the instruction too, so that a scripted model knows which task it is at."""
    instruction: str
    files: Mapping[str, str]
    """What /app holds at the start."""
    steps: tuple[tuple[str, ...], ...]
    """Commands that solve it, a tuple a turn; those of one turn do not need each other."""
    check: str
    """Python that fails unless the task is solved; runs in /app."""


def write_task(task: StandinTask, folder: Path) -> None:
    """Write a task's folder: instruction, environment, tests and solution."""
    instruction = f"Task {task.name}.\n\n{task.instruction} You start in /app, and need no network."
    config = (
        'schema_version = "1.4"\n\n[metadata]\nkind = "stand-in"\n\n'
        f"[verifier]\ntimeout_sec = {VERIFIER_TIMEOUT_S}\n\n"
        f"[agent]\ntimeout_sec = {AGENT_TIMEOUT_S}\n\n"
        "[environment]\nbuild_timeout_sec = 300.0\n"
    )
    test = (
        "#!/bin/bash\ncd /app\nif python3 /tests/check.py; then reward=1; else reward=0; fi\n"
        "echo $reward > /logs/verifier/reward.txt\n"
    )
    commands = [command for step in task.steps for command in step]
    parts = {
        "instruction.md": instruction + "\n",
        "task.toml": config,
        "environment/Dockerfile": (
            "FROM python:3.12-bookworm\nWORKDIR /app\nCOPY files/ /app/\n"  # read by Docker only
        ),
        "tests/test.sh": test,
        "tests/check.py": task.check,
        "solution/solve.sh": "\n".join(["#!/bin/bash", "set -e", "cd /app", *commands, ""]),
        **{f"environment/files/{name}": text for name, text in task.files.items()},
    }
    for name, text in parts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.suffix == ".sh":
            path.chmod(0o755)


def _write(path: str, text: str) -> str:
    """A command that writes a file."""
    return f"printf %s {shlex.quote(text)} > {path}"


_LOG = "".join(
    f"2026-01-{1 + i % 28:02} {'ERROR' if i % 7 == 0 else 'INFO'} worker{i % 3} step {i}\n"
    for i in range(120)
)
_SALES = "region,amount\n" + "".join(f"{'north' if i % 2 else 'south'},{i}\n" for i in range(1, 41))
_WORDS = "the quick brown fox jumps over the lazy dog and the cat\n" * 9
_PEOPLE = '[{"name": "Ada", "born": 1815}, {"name": "Alan", "born": 1912}]\n'

STANDIN_TASKS: tuple[StandinTask, ...] = (
    StandinTask(
        "standin-count-words",
        "Count how often each word occurs in words.txt and write the most frequent word and its "
        "count, separated by a space, to most.txt.",
        {"words.txt": _WORDS},
        (
            ("ls -la", "wc words.txt"),
            (
                "tr ' ' '\\n' < words.txt | sort | uniq -c | sort -rn | head -1 "
                "| awk '{print $2, $1}' > most.txt",
            ),
            ("cat most.txt",),
        ),
        # 9 lines, each with `the` three times: 27.
        "assert open('most.txt').read().split() == ['the', '27']\n",
    ),
    StandinTask(
        "standin-sum-column",
        "Write the sum of the column `amount` of sales.csv over the rows of region `north` to "
        "sum.txt.",
        {"sales.csv": _SALES},
        (
            ("head -3 sales.csv",),
            ("awk -F, '$1 == \"north\" {s += $2} END {print s}' sales.csv > sum.txt",),
            ("cat sum.txt", "sleep 0.3"),
        ),
        # Odd amounts from 1 to 39: 20 squared.
        "assert open('sum.txt').read().strip() == '400'\n",
    ),
    StandinTask(
        "standin-rename-files",
        "Rename every file of the folder notes that ends in .text so that it ends in .md.",
        {f"notes/{name}.text": f"{name}\n" for name in ("one", "two", "three")},
        (
            ("ls notes",),
            ('for f in notes/*.text; do mv "$f" "${f%.text}.md"; done',),
            ("ls notes",),
        ),
        "import os\nassert sorted(os.listdir('notes')) == ['one.md', 'three.md', 'two.md']\n",
    ),
    StandinTask(
        "standin-fix-program",
        "average.py should print the average of its arguments, but it is wrong. Repair it.",
        {"average.py": "import sys\nn = [float(a) for a in sys.argv[1:]]\nprint(sum(n) // 2)\n"},
        (
            ("cat average.py", "python3 average.py 1 2 6"),
            ("sed -i 's|// 2|/ len(n)|' average.py",),
            ("python3 average.py 1 2 6",),
        ),
        "import subprocess as s\n"
        "out = s.run(['python3', 'average.py', '1', '2', '6'], capture_output=True).stdout\n"
        "assert float(out) == 3.0\n",
    ),
    StandinTask(
        "standin-json-to-csv",
        "Turn people.json into people.csv, with the columns name and born.",
        {"people.json": _PEOPLE},
        (
            ("cat people.json",),
            (
                "python3 -c \"import csv, json; p = json.load(open('people.json')); "
                "w = csv.DictWriter(open('people.csv', 'w'), ['name', 'born']); "
                'w.writeheader(); w.writerows(p)"',
            ),
            ("cat people.csv",),
        ),
        "assert open('people.csv').read().split() == ['name,born', 'Ada,1815', 'Alan,1912']\n",
    ),
    StandinTask(
        "standin-count-errors",
        "Write how many lines of service.log are errors, for each worker, to errors.txt: one line "
        "a worker, its name and its count, in the order of the names.",
        {"service.log": _LOG},
        (
            ("head -4 service.log", "grep -c ERROR service.log"),
            (
                "grep ERROR service.log | cut -d' ' -f3 | sort | uniq -c | awk '{print $2, $1}' "
                "> errors.txt",
            ),
            ("cat errors.txt", "sleep 0.5"),
        ),
        # 0, 7, .., 119: 18 errors, and as 7 and 3 have no common divisor, 6 for each worker.
        "assert open('errors.txt').read().split() == "
        "['worker0', '6', 'worker1', '6', 'worker2', '6']\n",
    ),
    StandinTask(
        "standin-write-program",
        "Write primes.py, which prints the prime numbers below its argument, one a line.",
        {"README": "Nothing here yet.\n"},
        (
            ("ls", "python3 --version"),
            (
                _write(
                    "primes.py",
                    "import sys\n\nfor n in range(2, int(sys.argv[1])):\n"
                    "    if all(n % d for d in range(2, n)):\n        print(n)\n",
                ),
            ),
            ("python3 primes.py 30",),
        ),
        "import subprocess as s\n"
        "out = s.run(['python3', 'primes.py', '20'], capture_output=True, text=True).stdout\n"
        "assert out.split() == ['2', '3', '5', '7', '11', '13', '17', '19'], out\n",
    ),
    StandinTask(
        "standin-wait-for-build",
        "Run `make`, wait for it to end, and copy what it built to the folder dist.",
        {"Makefile": "app:\n\tsleep 2\n\techo built > app\n"},
        (
            ("cat Makefile",),
            ("make",),
            ("mkdir -p dist && cp app dist/",),
        ),
        "assert open('dist/app').read() == 'built\\n'\n",
    ),
)
