"""Small requests to one engine: is it ready, does it remember, forget."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentsched import AgentschedError
from harness.live.engines.kinds import Dialect
from harness.live.engines.layout import Place
from harness.live.gauges import Gauges, read_gauges
from harness.live.words import words

FAKE_BOOTSTRAP_HOST = "2.2.2.2"
"""SGLang's own name for a peer that is not there: a prefill or decode replica then answers alone
(sglang/srt/disaggregation/utils.py)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status 0: nobody answered."""

    status: int
    body: bytes

    @property
    def data(self) -> Mapping[str, Any]:
        """The JSON object in the body; empty if there is none."""
        try:
            found = json.loads(self.body)
        except (json.JSONDecodeError, UnicodeDecodeError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Generated:
    """What a generation used."""

    prompt_tokens: int
    cached_tokens: int | None
    """None: it does not say."""
    output_tokens: int


class EngineProbe:
    """Talks to one replica, blocking.

    Args:
        model: the name it is served under.
    """

    def __init__(self, place: Place, host: str, dialect: Dialect, model: str) -> None:
        self._place, self._host = place, host
        self._dialect, self._model = dialect, model

    def request(
        self, method: str, path: str, body: object = None, timeout_s: float = 10.0
    ) -> Answer:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection(self._host, self._place.port, timeout=timeout_s)
        payload = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, payload, {"content-type": "application/json"})
            response = connection.getresponse()
            return Answer(response.status, response.read())
        except (OSError, http.client.HTTPException):
            return Answer(0, b"")
        finally:
            connection.close()

    def healthy(self) -> bool:
        return self.request("GET", "/health", timeout_s=5.0).status == 200

    def generate(self, prompt: str, tokens: int = 1, timeout_s: float = 300.0) -> Generated:
        """Generate `tokens` tokens.

        Raises:
            AgentschedError: the engine did not.
        """
        alone = self._dialect == "sglang" and self._place.role != "mixed"
        answer = (
            self._native(prompt, tokens, timeout_s)
            if alone
            else self._openai(prompt, tokens, timeout_s)
        )
        found = _usage(answer.data)
        if answer.status != 200 or found is None:
            raise AgentschedError(
                f"replica {self._place.name} does not generate: status {answer.status}, "
                f"{answer.body[:300].decode('utf-8', 'replace')!r}",
                "read its log",
            )
        return found

    def gauges(self) -> Gauges | None:
        """Its metrics page; None: there is none."""
        page = self.request("GET", "/metrics")
        return read_gauges(page.body.decode("utf-8", "replace")) if page.status == 200 else None

    def forget(self, timeout_s: float = 30.0) -> bool:
        """Empty the prefix cache; False: the engine could not or would not (now)."""
        if self._dialect == "sglang":
            return self.request("POST", f"/flush_cache?timeout={timeout_s:g}", None,
                                timeout_s + 5).status == 200  # fmt: skip
        external = "?reset_external=true" if self._place.role != "mixed" else ""
        answer = self.request("POST", f"/reset_prefix_cache{external}", None, timeout_s)
        return answer.status == 200 and answer.data.get("success", True) is True

    def version(self) -> str | None:
        """As the engine states it."""
        path = "/version" if self._dialect == "vllm" else "/server_info"
        found = self.request("GET", path).data.get("version")
        return found if isinstance(found, str) else None

    def _openai(self, prompt: str, tokens: int, timeout_s: float) -> Answer:
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        return self.request("POST", "/v1/completions", body, timeout_s)

    def _native(self, prompt: str, tokens: int, timeout_s: float) -> Answer:
        body = {
            "text": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
            "bootstrap_host": FAKE_BOOTSTRAP_HOST,
            "bootstrap_room": 0,
        }
        return self.request("POST", "/generate", body, timeout_s)


def _usage(data: Mapping[str, Any]) -> Generated | None:
    """From an OpenAI answer's usage, or SGLang's meta_info."""
    usage = data.get("usage") or data.get("meta_info")
    if not isinstance(usage, dict) or not isinstance(usage.get("prompt_tokens"), int):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if cached is None:
        cached = usage.get("cached_tokens")
    return Generated(
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=cached if isinstance(cached, int) else None,
        output_tokens=int(usage.get("completion_tokens") or 0),
    )


def probe_text(name: str, tokens: int) -> str:
    """Text of about `tokens` tokens that shares nothing with that of another name, from its first
    word on."""
    return f"{name}:{words(name, tokens)}"
