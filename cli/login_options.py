"""Options of commands that are clients of a gateway: how they are let in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from harness.live.login import Login

ClientTokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="Bring the first token of this file."),
]
ClientToken = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        envvar="AGENTSCHED_TOKEN",
        help="The same for one token; better given in the environment than here.",
        show_envvar=True,
    ),
]
Authorities = Annotated[
    Path | None,
    typer.Option("--cacert", metavar="FILE.pem", help="Certificates to trust, for https."),
]


def login(token_file: Path | None, token: str | None, authorities: Path | None) -> Login:
    """What the options let a client bring.

    Raises:
        UsageError: the file cannot be read, holds no token, or others may read it.
    """
    from harness.live.access import read_tokens
    from harness.live.login import Login

    if token_file is not None:
        token = read_tokens(token_file)[0]
    return Login(token, authorities)
