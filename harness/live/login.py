"""What a client of ours brings to a port that asks for it: a token, trust in its certificate."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from agentsched import UsageError

WITH_TOKEN = "give one it takes: --token-file FILE"
WITH_AUTHORITY = "give --cacert FILE.pem, and the address that the certificate is for"


@dataclass(frozen=True, slots=True)
class Login:
    """How to be let in."""

    token: str | None = field(default=None, repr=False)
    """Sent as `Authorization: Bearer`; None: nothing is."""
    authorities: Path | None = None
    """Certificates (PEM) trusted to vouch for a server; None: those that the system trusts."""

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"authorization": f"Bearer {self.token}"}

    def tls_for(self, url: str) -> ssl.SSLContext | None:
        """A client's context; None: the address is not https.

        Raises:
            UsageError: the file holds no certificate.
        """
        if urlsplit(url).scheme != "https":
            return None
        try:
            return ssl.create_default_context(cafile=self.authorities)
        except (OSError, ssl.SSLError) as error:
            why = error.strerror or str(error)
            raise UsageError(
                f"cannot use the certificates of {self.authorities}: {why}",
                "name a PEM file, such as the gateway's own --cert",
            ) from None


def connect_problem(error: OSError) -> str:
    """Why there is no connection, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"no TLS there ({error.reason or error})"
    return os.strerror(error.errno) if error.errno else "no answer"
