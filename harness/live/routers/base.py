"""What is known of a router, and the settings it may be given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from agentsched import UsageError
from harness.live.parts import ReplicaAddress
from harness.live.routers.naming import SessionName
from harness.live.wire import Request

MODEL_UNKNOWN = "model"


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Settings of any router. Flags that have no setting here go into `args` as they are."""

    program: str | None = None
    """The program, or the folder it is in; None: the environment that `agentsched engine install`
    made, that of agentsched itself, then PATH. Of `thunderagent`: a checkout of its repository."""
    args: tuple[str, ...] = ()
    """More of its flags, after ours."""
    port: int = 0
    """It listens there on the loopback address; 0: a free one."""
    ready_s: float = 120.0
    """How long it may take until it has answered a request with all replicas known to it."""
    name_sessions: bool = True
    """Put a relay before it that names the session as the router wants it; without, only clients
    that do so themselves are told apart. The relay adds some tenths of a millisecond."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its process, over our own."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError("port must be from 0 to 65535")
        if not self.ready_s > 0:
            raise ValueError("ready_s must be above 0")


@dataclass(frozen=True, slots=True)
class Launch:
    """What a command line is made from."""

    program: Sequence[str]
    """The start of the command line."""
    port: int
    metrics_port: int
    replicas: Sequence[ReplicaAddress]
    model: str
    """Name that the replicas serve the model under."""
    folder: Path
    """For files of the router."""
    scratch: Path
    """For files that are gone with it."""
    served: Mapping[str, Any] = field(default_factory=dict)
    """What the first replica says of its model at /v1/models."""
    tell: str | None = None
    """HOST:PORT where helpers tell which requests they were given."""


@dataclass(frozen=True, slots=True)
class Helper:
    """A program that runs beside the router, as long as it does."""

    name: str
    command: Sequence[str]


class Router:
    """One rival. Subclasses say what is different about it."""

    name: ClassVar[str]
    distribution: ClassVar[str]
    """As pip knows it."""
    version: ClassVar[str]
    """Made for this version; another one is used as it is, and named in the facts."""
    program: ClassVar[str]
    """File name of its program."""
    policies: ClassVar[tuple[str, ...]]
    """The first one is what it does unless told."""
    source: ClassVar[str]
    """Where it is published."""
    session_name: ClassVar[SessionName] = SessionName()
    known_path: ClassVar[str | None] = None
    """Page that lists the replicas it knows."""
    module: ClassVar[str | None] = None
    """It is a module of Python, and `program` the interpreter that has its distribution."""
    replica_header: ClassVar[str | None] = None
    """Header of its answers that has the URL of the replica."""
    request_header: ClassVar[str | None] = None
    """Header in which it takes a request's name, for helpers that tell which ones they got."""
    config_type: ClassVar[type[RouterSettings]] = RouterSettings

    def __init__(self, policy: str, settings: RouterSettings) -> None:
        self.policy, self.settings = policy, settings

    def command(self, launch: Launch) -> list[str]:
        """Its command line, without `args`.

        Raises:
            UsageError: it cannot front these replicas in this way.
        """
        raise NotImplementedError

    def environment(self, launch: Launch) -> dict[str, str]:
        return {}

    def helpers(self, launch: Launch) -> list[Helper]:
        """What runs beside it, in the router's environment.

        Raises:
            UsageError: as `command`.
        """
        return []

    def facts(self) -> Mapping[str, Any]:
        """What is to be known of it beside its command line."""
        return {}

    def knows(self, page: Any, replicas: Sequence[ReplicaAddress]) -> bool:
        """Whether the JSON of `known_path` names all replicas as healthy."""
        return True

    def order(self, page: Any) -> list[str]:
        """URLs of the replicas in the order in which it goes through them; empty: not known."""
        return []

    def probe(self, model: str) -> Request:
        """The request that shows it is ready."""
        text = (
            b'{"model":"%s","messages":[{"role":"user","content":"ready?"}],'
            b'"max_tokens":1,"temperature":0}' % model.encode()
        )
        headers = {"content-type": "application/json", "x-session-id": PROBE_SESSION}
        return self.session_name.put_on(Request("POST", "/v1/chat/completions", headers, text))

    def release(self, session: str) -> Request | None:
        """What tells it that a session has ended; None: it does not want to know."""
        return None


PROBE_SESSION = "agentsched-ready"


def mixed_only(router: Router, replicas: Sequence[ReplicaAddress]) -> None:
    """Raises UsageError if some replicas are for prefill or decode alone."""
    for replica in replicas:
        if replica.role != "mixed":
            raise UsageError(
                f"router `{router.name}` cannot split turns, and replica {replica.name} is for "
                f"{replica.role} alone",
                "use a topology of mixed replicas, or --router vllm-router",
            )


def split(
    replicas: Sequence[ReplicaAddress],
) -> tuple[list[ReplicaAddress], list[ReplicaAddress]]:
    """(prefill, decode) replicas; both empty where all are mixed.

    Raises:
        UsageError: mixed ones beside others, or one kind is missing.
    """
    prefill = [replica for replica in replicas if replica.role == "prefill"]
    decode = [replica for replica in replicas if replica.role == "decode"]
    if not prefill and not decode:
        return [], []
    if not prefill or not decode or len(prefill) + len(decode) != len(replicas):
        roles = ", ".join(f"{replica.name} {replica.role}" for replica in replicas)
        raise UsageError(
            f"routers front either mixed replicas, or prefill and decode ones; here are: {roles}",
            "use a topology of one of these kinds",
        )
    return prefill, decode
