"""Lists the tasks of a data set through Harbor's own loader, as JSON on standard output.

    python harbor_listing.py DATASET[@VERSION]     {"tasks": [...]} or {"error": "..."}

A program of its own because Harbor runs under its own interpreter.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import redirect_stdout
from typing import Any

from harbor.models.job.config import DatasetConfig

_REACH_S = 120.0
"""Our choice."""


async def _listed(dataset: str) -> list[dict[str, Any]]:
    name, _, version = dataset.partition("@")
    given = {"name": name, "ref" if "/" in name else "version": version or None}
    config = DatasetConfig.model_validate({k: v for k, v in given.items() if v is not None})
    tasks = await asyncio.wait_for(config.get_task_configs(), _REACH_S)
    return [
        {
            "id": task.get_task_id().get_name(),
            "task": task.model_dump(mode="json", exclude_none=True),
        }
        for task in tasks
    ]


def main(dataset: str) -> None:
    """Print the list."""
    try:
        with redirect_stdout(sys.stderr):
            answer: dict[str, Any] = {"tasks": asyncio.run(_listed(dataset))}
    except Exception as error:  # whatever a registry's client raises is told, not shown
        answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
