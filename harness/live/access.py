"""Who may talk to a port, over what, and how much.

On loopback anyone may. A port that others can reach needs a token, or the operator's word that
anyone may. Tokens are compared in constant time and never sent on to engines or written anywhere.
"""

from __future__ import annotations

import hmac
import ipaddress
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from agentsched import UsageError
from harness.live.wire import Exchange, Handler, Headers, Request

MIN_TOKEN_CHARS = 16
"""Shorter ones can be guessed. Our choice; `openssl rand -hex 32` gives 64."""
_CREDENTIALS = ("authorization", "x-api-key", "api-key", "proxy-authorization")
"""Headers that hold tokens: OpenAI's, Anthropic's, Azure's."""

_OPEN_PATHS = ("/health", "/ping")
"""Anyone may ask whether it is up; the answer says nothing else."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use a port."""

    tokens: tuple[str, ...] = ()
    """Any of them opens it; none: no token is asked for."""
    anyone: bool = False
    """The operator allows a port without a token on an address that others can reach."""

    def __post_init__(self) -> None:
        for token in self.tokens:
            if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable():
                raise UsageError(
                    f"a token has fewer than {MIN_TOKEN_CHARS} characters, or some that no header "
                    "can hold",
                    "make one with `openssl rand -hex 32`",
                )

    def __repr__(self) -> str:
        return f"Access({len(self.tokens)} token(s), anyone={self.anyone})"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A certificate chain and its key, PEM."""

    certificate: Path
    key: Path | None = None
    """None: in the same file."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, access: Access, what: str) -> None:
    """Raises UsageError if others can reach the address and nothing keeps them out."""
    if not (is_loopback(host) or access.tokens or access.anyone):
        raise UsageError(
            f"{what} would listen on {host} for anyone who can reach it",
            "keep to 127.0.0.1, give --token-file FILE, or --allow-anyone if others are kept out",
        )


def read_tokens(path: Path) -> tuple[str, ...]:
    """Tokens of a file, one a line; blank lines and those that begin with # are left out.

    Raises:
        UsageError: it cannot be read, holds none, or others than its owner may read it.
    """
    try:
        others = path.stat().st_mode & 0o077
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise UsageError(f"token file {path}: {why}", "name a readable file") from None
    if others:
        raise UsageError(f"token file {path}: others may read it", f"chmod 600 {path}")
    lines = (line.strip() for line in text.splitlines())
    tokens = tuple(line for line in lines if line and not line.startswith("#"))
    if not tokens:
        raise UsageError(f"token file {path}: holds no token", "one a line")
    return tokens


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """A server's context for TLS 1.2 and newer.

    Raises:
        UsageError: the files do not hold a certificate and its key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or str(error)
        raise UsageError(
            f"cannot use certificate {files.certificate}: {why}",
            "give --cert FILE and --key FILE, PEM, the key without a passphrase",
        ) from None
    return context


Refusal = Callable[[str, int, str], tuple[Headers, bytes]]


class Guard:
    """A handler that lets through who may come in.

    Args:
        inner: gets the requests that may pass; where tokens are asked for, without them and with
            `caller` saying which one it was.
        refuse: makes (headers, body) of a refusal from (path, status, message).
    """

    def __init__(self, inner: Handler, refuse: Refusal, access: Access) -> None:
        self._inner, self._refuse = inner, refuse
        self._digests: Sequence[bytes] = [_digest(token) for token in access.tokens]
        self.refused = 0
        """Requests that were turned away."""

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Answer a request, or turn it away."""
        if request.method == "GET" and request.path in _OPEN_PATHS:
            self._inner(Request("GET", request.path), exchange)
            return
        if not self._digests:
            if request.headers.get("origin", "null") != "null" and not _own(request):
                # A page in a browser on this machine; no agent sends it.
                self._turn_away(request, exchange, 403, "requests of web pages are not served")
                return
            self._inner(request, exchange)
            return
        caller = self._caller(request)
        if caller is None:
            self._turn_away(request, exchange, 401, "a token is needed: Authorization: Bearer ...")
            return
        kept = {name: v for name, v in request.headers.items() if name not in _CREDENTIALS}
        self._inner(request._replace(headers=kept, caller=caller), exchange)

    def _caller(self, request: Request) -> str | None:
        """Name of the token that the request brings; None: it brings no right one."""
        given = request.headers.get("x-api-key") or request.headers.get("api-key") or ""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given = bearer.strip()
        digest, found = _digest(given), None
        for number, known in enumerate(self._digests):  # all of them, whichever is right
            if hmac.compare_digest(digest, known):
                found = f"key-{number}"
        return found

    def _turn_away(self, request: Request, exchange: Exchange, status: int, message: str) -> None:
        self.refused += 1
        headers, body = self._refuse(request.path, status, message)
        extra = [("www-authenticate", "Bearer")] if status == 401 else []
        exchange.reply(status, [*headers, *extra], body)


def _own(request: Request) -> bool:
    """Whether the page that asks came from this very machine."""
    host = request.headers["origin"].partition("://")[2]
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    return is_loopback(name)


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
