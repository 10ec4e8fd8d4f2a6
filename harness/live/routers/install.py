"""What to install for which router, each in an environment of its own."""

from __future__ import annotations

from dataclasses import dataclass

from harness.live.routers.others import LiteLlmProxy
from harness.live.routers.rust import SglangRouter, Smg, VllmRouter


@dataclass(frozen=True, slots=True)
class InstallSpec:
    """One environment."""

    name: str
    packages: tuple[str, ...]
    """For pip."""
    program: str
    """The file in the environment's bin folder that shows the install is complete."""
    size_mb: int
    """Of the environment, measured on x86_64 Linux with Python 3.11."""


INSTALLS: dict[str, InstallSpec] = {
    spec.name: spec
    for spec in (
        InstallSpec(
            "vllm-router", (f"vllm-router=={VllmRouter.version}",), VllmRouter.program, 131
        ),
        InstallSpec("smg", (f"smg=={Smg.version}",), Smg.program, 154),
        InstallSpec(
            "sglang-router", (f"sglang-router=={SglangRouter.version}",), SglangRouter.program, 146
        ),
        InstallSpec(
            "litellm", (f"litellm[proxy]=={LiteLlmProxy.version}",), LiteLlmProxy.program, 756
        ),
    )
}
"""By router. ThunderAgent is not on the package index: check its repository out."""
