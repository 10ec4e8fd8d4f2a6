"""ThunderAgent as its code ships: the defects that `thunderagent` repairs are all in.

- Marking reasoning sessions frees nothing at once, so one round marks all of them.
- A failed or abandoned turn leaves its session reasoning, with its tokens, for good.
- A session that is never released is never forgotten. Without release calls and without decay,
  held turns wait out the 1,800 s limit (`honour_release=false`).
- The first of several parallel turns to end makes the session acting.
- A session whose replica is lost stays bound to it: its turns are refused until it is back.
- Smallest first decides admission, so large prompts starve in a burst.

Not reproduced: the race in which a session is paused while its turn is being admitted, which
answered one request in 9,350 with an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from schedulers.base import SchedulerInfo
from schedulers.thunderagent import ThunderAgent, ThunderAgentConfig


@dataclass(frozen=True, slots=True)
class AsShippedConfig(ThunderAgentConfig):
    finish_on_all_exits: bool = False
    idle_ttl_s: float = 0.0
    lease_idle_s: float = 0.0
    count_future_pauses: bool = False
    count_in_flight: bool = False
    failover: bool = False
    aging_s: float = 0.0


class ThunderAgentAsShipped(ThunderAgent):
    name = "thunderagent-as-shipped"
    info = SchedulerInfo(
        family="admission",
        observes="context tokens, phase, capacity",
        holds=True,
        fidelity="source code read",
        reference="ThunderAgent, arXiv 2602.13692, code at a7eef77, known defects included",
    )
    Config = AsShippedConfig
