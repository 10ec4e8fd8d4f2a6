"""Rivals' own routers, put before the same replicas in place of our gateway.

    front = find_router("vllm-router:cache_aware", {"cache_threshold": 0.5}, cell_folder)
    await front.start(replicas)

The program is launched as its users would, is measured by the same client, and what it does
carries the label `external`.
"""

from harness.live.routers.find import (
    ROUTERS,
    arm_name,
    check_router,
    describe_router,
    find_program,
    find_router,
)
from harness.live.routers.front import RouterFront
from harness.live.routers.install import INSTALLS, InstallSpec, install_router
from harness.live.routers.process import RouterError

__all__ = [
    "INSTALLS",
    "InstallSpec",
    "ROUTERS",
    "RouterError",
    "RouterFront",
    "arm_name",
    "check_router",
    "describe_router",
    "find_program",
    "find_router",
    "install_router",
]
