"""What would be started, for a dry run: nothing is looked at, made or started."""

from __future__ import annotations

from pathlib import Path

from harness.capacity import Cluster
from harness.live.engines.commands import EngineCommand, command
from harness.live.engines.kinds import environment, find_engine
from harness.live.engines.layout import lay_out
from harness.live.engines.settings import EngineSettings

_RUNTIME = Path("/tmp/agentsched-XXXXXXXX")
"""Stands for the folder of sockets that a run makes."""


def planned_commands(
    engine: str, cluster: Cluster, settings: EngineSettings | None = None
) -> list[EngineCommand]:
    """The command of each replica; neither engine nor GPUs need to be there.

    Raises:
        UsageError: no such engine, or settings, engine and topology do not go together.
    """
    settings = settings or EngineSettings()
    kind = find_engine(engine)
    place = environment(kind, settings.environment)
    places = lay_out(cluster, kind, settings, _RUNTIME)
    return [command(one, cluster.model, place, settings, replicas=len(places)) for one in places]
