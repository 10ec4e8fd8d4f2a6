"""A relay before a model API that adds a header, for programs that cannot send one themselves.

It also says when each request comes and when its answer has gone, and which tools the answer
calls, which is all that can be known of such a program's tools. Standard library only.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from workloads.agents.loopback import LoopbackServer, QuietHandler

_OWN_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}
LIMIT_S = 1800.0
"""How long an answer may take. Our choice."""


class HeaderRelay(LoopbackServer):
    """Passes on what comes to a free port of the loopback.

    Args:
        base_url: where requests go, without /v1; http only.
        headers: added to each request.
        asked: called when a request has come.
        answered: called when its answer has gone, with the names of the tools it calls.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        asked: Callable[[], None],
        answered: Callable[[list[str]], None],
    ) -> None:
        self._target = urlsplit(base_url)
        self._headers, self._asked, self._answered = dict(headers), asked, answered
        relay = self

        class Handler(QuietHandler):
            def answer(self) -> None:
                relay._pass_on(self, self.rfile.read(int(self.headers.get("content-length", 0))))

        super().__init__(Handler)

    def _pass_on(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        model_call = handler.command == "POST"
        if model_call:
            self._asked()
        headers = {k: v for k, v in handler.headers.items() if k.lower() not in _OWN_HOP}
        connection = http.client.HTTPConnection(self._target.netloc, timeout=LIMIT_S)
        try:
            path = self._target.path.rstrip("/") + handler.path
            connection.request(handler.command, path, body or None, {**headers, **self._headers})
            tools = self._answer(handler, connection.getresponse())
        except (OSError, http.client.HTTPException) as error:
            handler.close_connection = True
            tools = []
            if not handler.wfile.closed:
                handler.send_error(502, f"{type(error).__name__}")
        finally:
            connection.close()
        if model_call:
            self._answered(tools)

    def _answer(
        self, handler: BaseHTTPRequestHandler, response: http.client.HTTPResponse
    ) -> list[str]:
        """Send the answer on as it comes; returns the names of tools in it."""
        handler.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in _OWN_HOP:
                handler.send_header(name, value)
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        whole = b""
        while data := response.read1(65536):
            whole += data
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            handler.wfile.flush()
        handler.wfile.write(b"0\r\n\r\n")
        handler.wfile.flush()
        return called_tools(whole)


def called_tools(answer: bytes) -> list[str]:
    """Names of the tools that an answer of OpenAI's chat API calls, whole or streamed."""
    if answer.lstrip().startswith(b"data:"):
        lines = [line[5:] for line in answer.splitlines() if line.startswith(b"data:")]
    else:
        lines = [answer]
    names: list[str] = []
    for line in lines:
        try:
            choices = json.loads(line)["choices"]
        except (ValueError, KeyError, TypeError):
            continue
        for choice in choices:
            part = choice.get("message") or choice.get("delta") or {}
            for call in part.get("tool_calls") or ():
                name = (call.get("function") or {}).get("name")
                names += [name] if name else []
    return names
