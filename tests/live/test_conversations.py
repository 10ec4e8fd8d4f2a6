"""Unnamed requests are matched by the conversation they continue."""

from __future__ import annotations

from harness.live.conversations import Conversations
from harness.live.texts import Piece, TextTree, TokenRatio

FIRST = [Piece("system", "you solve issues"), Piece("user", "fix the parser")]


def never_busy(session: str) -> bool:
    return False


def later(reply: str, result: str = "ok") -> list[Piece]:
    return [*FIRST, Piece("assistant", reply), Piece("user", result)]


def test_a_continued_conversation_is_found() -> None:
    texts, known = TextTree(TokenRatio()), Conversations()
    known.arrived("a", texts.walk(FIRST))
    known.replied("a", "run ls")
    assert known.find(texts.walk(later("run ls")), ["run ls"], never_busy) == "a"
    other = [Piece("user", "hello"), Piece("assistant", "hi"), Piece("user", "more")]
    assert known.find(texts.walk(other), ["hi"], never_busy) is None


def test_a_first_message_continues_nothing() -> None:
    texts, known = TextTree(TokenRatio()), Conversations()
    known.arrived("a", texts.walk(FIRST))
    more = [*FIRST, Piece("user", "and quickly")]
    assert known.find(texts.walk(more), [], never_busy) is None


def test_the_same_task_twice_at_once() -> None:
    texts, known = TextTree(TokenRatio()), Conversations()
    for session, reply in (("a", "run ls"), ("b", "run pwd")):
        known.arrived(session, texts.walk(FIRST))
        known.replied(session, reply)
    assert known.find(texts.walk(later("run pwd")), ["run pwd"], never_busy) == "b"
    assert known.find(texts.walk(later("run ls")), ["run ls"], never_busy) == "a"
    # Equal replies too: whoever is free, the oldest first.
    known.replied("b", "run ls")
    assert known.find(texts.walk(later("run ls")), ["run ls"], never_busy) == "a"
    assert known.find(texts.walk(later("run ls")), ["run ls"], lambda s: s == "a") == "b"


def test_the_longest_conversation_wins() -> None:
    texts, known = TextTree(TokenRatio()), Conversations()
    known.arrived("old", texts.walk(FIRST))
    known.arrived("new", texts.walk(later("run ls")))
    third = [*later("run ls"), Piece("assistant", "done"), Piece("user", "thanks")]
    assert known.find(texts.walk(third), ["run ls", "done"], never_busy) == "new"


def test_the_longest_untouched_is_forgotten() -> None:
    texts, known = TextTree(TokenRatio()), Conversations(limit=2)
    for name in "abc":
        known.arrived(name, texts.walk([Piece("user", f"task {name}")]))
    for name, found in (("a", None), ("b", "b"), ("c", "c")):
        prompt = [Piece("user", f"task {name}"), Piece("assistant", "x"), Piece("user", "y")]
        assert known.find(texts.walk(prompt), ["x"], never_busy) == found


def test_a_failed_request_that_is_sent_again() -> None:
    texts, known = TextTree(TokenRatio()), Conversations()
    path = texts.walk(FIRST)
    known.arrived("a", path)
    assert known.find(path, [], never_busy) == "a"
    assert known.find(path, [], lambda session: True) is None  # a twin, not a second try
    known.replied("a", "run ls")
    assert known.find(path, [], never_busy) is None  # the same task, begun anew


def test_a_conversation_goes_with_its_text() -> None:
    known = Conversations()
    # Two texts of 20 bytes fit; the third pushes the first one out.
    texts = TextTree(TokenRatio(), text_limit=40, dropped=known.forget)
    path = texts.walk([Piece("user", "one task, twenty by.")])
    known.arrived("a", path)
    known.arrived("b", texts.walk([Piece("user", "another task, 20 by.")]))
    assert known.find(path, [], never_busy) == "a"
    known.arrived("c", texts.walk([Piece("user", "a third task, 20 by.")]))
    assert known.find(path, [], never_busy) is None
