"""What of a Dockerfile can be followed without building an image. Standard library only."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import PurePosixPath

DEFAULT_FOLDER = "/app"
"""Where Terminal-Bench's images start."""


@dataclass(slots=True)
class Recipe:
    """What a sandbox makes of a Dockerfile."""

    folder: str = DEFAULT_FOLDER
    environment: dict[str, str] = field(default_factory=dict)
    copies: list[tuple[str, str]] = field(default_factory=list)
    """Source below the Dockerfile's folder, target."""
    left_out: list[str] = field(default_factory=list)
    """Instructions that were not followed."""


def read_dockerfile(text: str) -> Recipe:
    """Follow a Dockerfile as far as it goes; FROM, CMD and other marks need nothing."""
    recipe = Recipe()
    for line in text.replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        kind = word.upper()
        if kind == "WORKDIR":
            recipe.folder = str(PurePosixPath(recipe.folder) / rest.strip())
        elif kind == "ENV" and "=" in rest:
            for pair in shlex.split(rest):
                name, _, value = pair.partition("=")
                recipe.environment[name] = value
        elif kind == "COPY" and not rest.lstrip().startswith(("-", "[")):
            *sources, target = shlex.split(rest)
            into = str(PurePosixPath(recipe.folder) / target) + "/" * target.endswith("/")
            recipe.copies += [(source, into) for source in sources]
        elif kind in ("RUN", "ADD", "COPY", "USER"):
            recipe.left_out.append(line.strip())
    return recipe
