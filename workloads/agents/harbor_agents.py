"""Harbor's agents as they are, with word of what they do.

Runs under Harbor's interpreter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from harbor.agents.terminus_2 import Terminus2
from harbor.llms.base import BaseLLM

from workloads.agents.base import EventKind

Notice = Callable[[EventKind, str], None]
"""Kind of event, name of the tool."""


def _unheard(kind: EventKind, name: str) -> None:
    """Until somebody listens."""


class WatchedTerminus2(Terminus2):
    """Terminus 2 that says when it calls the model, and when it types and waits.

    All keystrokes of a turn are one tool call, as one observation comes of them.
    """

    notice: Notice = staticmethod(_unheard)

    def _init_llm(self, *args: Any, **kwargs: Any) -> BaseLLM:
        llm = super()._init_llm(*args, **kwargs)
        llm.call = self._watched(llm.call)
        return llm

    def _watched(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def watched(*args: Any, **kwargs: Any) -> Any:
            self.notice("model_started", "")
            try:
                return await call(*args, **kwargs)
            finally:
                self.notice("model_ended", "")

        return watched

    async def _execute_commands(self, commands: Any, session: Any) -> tuple[bool, str]:
        self.notice("tool_started", "terminal")
        try:
            found: tuple[bool, str] = await super()._execute_commands(commands, session)
            return found
        finally:
            self.notice("tool_ended", "terminal")
