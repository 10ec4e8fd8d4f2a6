"""ThunderAgent as its code ships, started with its decay flag.

An acting session's tokens halve every second when room is computed for resuming; the check that
pauses sessions counts them in full, as the code does (the paper decays both).
"""

from __future__ import annotations

from dataclasses import dataclass

from schedulers.base import SchedulerInfo
from schedulers.thunderagent_as_shipped import AsShippedConfig, ThunderAgentAsShipped


@dataclass(frozen=True, slots=True)
class DecayConfig(AsShippedConfig):
    decay: bool = True


class ThunderAgentDecay(ThunderAgentAsShipped):
    name = "thunderagent-decay"
    info = SchedulerInfo(
        family="admission",
        observes="context tokens, phase, time since acting, capacity",
        holds=True,
        fidelity="source code read",
        reference="ThunderAgent, arXiv 2602.13692, code at a7eef77 with decay on",
    )
    Config = DecayConfig
