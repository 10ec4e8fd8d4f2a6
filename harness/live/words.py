"""Made-up text of a known number of tokens.

Words of three letters with a space before them: four bytes, and one token each in the common
byte-pair vocabularies. The same name always gives the same text.
"""

from __future__ import annotations

from hashlib import shake_256

BYTES_PER_TOKEN = 4

_LETTERS = """
act add age ago aid aim air all and any arm art ask bad bag bar bay bed big bit box boy bus but
buy can cap car cat cry cup cut day did die dog dry due ear eat egg end eye far fat few fit fix
fly for fun gap gas get god got gun had has hat her him his hit hot how ice its job key kid law
lay led leg let lie lot low mad man map may men met mix net new nor not now odd off oil old one
our out own pay per pet pop put ran red rid row run sad sat saw say sea see set she sit six sky
"""
VOCABULARY = tuple(f" {word}" for word in _LETTERS.split())


def words(name: str, tokens: int, start: int = 0) -> str:
    """Tokens `start` to `start + tokens` - 1 of the endless text called `name`."""
    if tokens <= 0:
        return ""
    # One digest is a prefix of the longer one of the same name.
    digits = shake_256(name.encode()).digest(start + tokens)[start:]
    return digits.translate(_TO_INDEX).decode("latin-1").translate(_TO_WORD)


_TO_INDEX = bytes(value % len(VOCABULARY) for value in range(256))
_TO_WORD = dict(enumerate(VOCABULARY))
