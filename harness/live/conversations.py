"""Sessions for requests that name none: the conversation they continue tells.

A request belongs to the session whose latest request it repeats and extends. Agents that run the
same task twice at once send equal beginnings; the reply that the new request quotes tells them
apart, and where it does not, a session that is between turns comes first, the oldest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from harness.live.texts import Node


@dataclass(slots=True)
class _Conversation:
    session: str
    node: int
    reply: bytes | None = None


class Conversations:
    """Where each unnamed session's conversation has got to.

    Args:
        limit: conversations remembered; the longest untouched are forgotten first.
    """

    def __init__(self, limit: int = 50_000) -> None:
        self._limit = limit
        self._by_session: dict[str, _Conversation] = {}
        self._at_node: dict[int, dict[str, None]] = {}
        self._count = 0

    def find(
        self, path: Sequence[Node], replies: Sequence[str], busy: Callable[[str], bool]
    ) -> str | None:
        """The session that a request continues; None if it continues none.

        Args:
            path: the request's text.
            replies: texts of the assistant's messages in it, in order.
            busy: whether a session has a turn in flight or waiting.
        """
        again = self._unanswered(path, busy)
        if again is not None or not replies:
            return again
        for node in reversed(path[:-1]):
            names = self._at_node.get(node.number)
            if not names:
                continue
            known = [self._by_session[name] for name in names]
            free = [c for c in known if not busy(c.session)] or known
            if len(free) > 1:
                quoted = {_hash(reply) for reply in replies}
                free = [c for c in free if c.reply in quoted] or free
            return free[0].session
        return None

    def _unanswered(self, path: Sequence[Node], busy: Callable[[str], bool]) -> str | None:
        """The session whose last request this is once more, because it failed."""
        for name in self._at_node.get(path[-1].number, ()) if path else ():
            if self._by_session[name].reply is None and not busy(name):
                return name
        return None

    def new_name(self) -> str:
        self._count += 1
        return f"conversation-{self._count}"

    def arrived(self, session: str, path: Sequence[Node]) -> None:
        """The session has sent this text."""
        self._leave(session)
        if not path:
            return
        self._by_session[session] = _Conversation(session, path[-1].number)
        self._at_node.setdefault(path[-1].number, {})[session] = None
        if len(self._by_session) > self._limit:
            self._leave(next(iter(self._by_session)))

    def replied(self, session: str, reply: str) -> None:
        """The session was sent this answer."""
        conversation = self._by_session.get(session)
        if conversation is not None:
            conversation.reply = _hash(reply)

    def forget(self, node: int) -> None:
        """The text of that node is not known any more: nothing can be found to continue it."""
        for session in list(self._at_node.get(node, ())):
            self._leave(session)

    def _leave(self, session: str) -> None:
        old = self._by_session.pop(session, None)
        if old is not None:
            names = self._at_node[old.node]
            del names[session]
            if not names:
                del self._at_node[old.node]


def _hash(text: str) -> bytes:
    return blake2b(text.strip().encode("utf-8", "surrogatepass"), digest_size=16).digest()
