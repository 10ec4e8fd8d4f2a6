"""Prints a data set's instances as JSON Lines; run by the interpreter that has `datasets`.

    python -m workloads.agents.swe_dataset NAME SPLIT

Exit status 3: the package is missing; 4: the data set cannot be had (why is on standard error).
"""

from __future__ import annotations

import json
import sys

KEPT = (
    "instance_id",
    "problem_statement",
    "repo",
    "base_commit",
    "version",
    "image_name",
    "docker_image",
)
"""Of an instance, what an agent's runner needs. The solution and its tests are never handed on."""
MISSING, UNREACHABLE = 3, 4


def main(name: str, split: str) -> int:
    """Print the instances; returns the exit status."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        print(error, file=sys.stderr)
        return MISSING
    try:
        found = load_dataset(name, split=split)
    except (OSError, ValueError) as error:  # no network, no such name, no such split
        print(str(error).partition("\n")[0], file=sys.stderr)
        return UNREACHABLE
    for instance in found:
        kept = {key: instance[key] for key in KEPT if instance.get(key) is not None}
        print(json.dumps(kept, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
