"""Looks at a running gateway through its admin port."""

from __future__ import annotations

import json
from http.client import HTTPException
from ssl import SSLError
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from agentsched import AgentschedError, UsageError
from harness.live.login import WITH_AUTHORITY, WITH_TOKEN, Login, connect_problem


def fetch_state(url: str, login: Login | None = None) -> dict[str, Any]:
    """What `/state` of the admin port says.

    Raises:
        UsageError: not an HTTP address, or not an admin port; a token that it does not take.
        AgentschedError: nothing answers.
    """
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"`{url}` is no HTTP address", "as http://127.0.0.1:8301")
    login = login or Login()
    request = Request(f"{url.rstrip('/')}/state", headers=login.headers)
    try:
        with urlopen(request, timeout=10, context=login.tls_for(url)) as answer:
            state = json.load(answer)
    except (URLError, TimeoutError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError) and error.code in (401, 403):
            raise UsageError(f"{url} asks for a token", WITH_TOKEN) from None
        why = getattr(error, "reason", error)
        if isinstance(why, SSLError):
            raise UsageError(f"{url}: {connect_problem(why)}", WITH_AUTHORITY) from None
        raise AgentschedError(
            f"{url} does not answer as an admin port: {error}",
            "give the admin address that `agentsched serve` printed (the model port plus one)",
        ) from None
    if not isinstance(state, dict) or "replicas" not in state:
        raise UsageError(f"{url} is not an admin port", "it is the model port plus one")
    return state


def rates(before: dict[str, Any], now: dict[str, Any]) -> dict[str, float]:
    """Output tokens a second of each replica between two states."""
    earlier = {r["id"]: r["generation_tokens"] for r in before["replicas"]}
    seconds = now["now_s"] - before["now_s"]
    found: dict[str, float] = {}
    for replica in now["replicas"]:
        tokens, then = replica["generation_tokens"], earlier.get(replica["id"])
        if tokens is not None and then is not None and seconds > 0:
            found[replica["id"]] = max(0.0, tokens - then) / seconds
    return found
