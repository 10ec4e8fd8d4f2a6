"""Token numbers of emulated replicas: a vocabulary in which every made-up word is one token.

Tokens are the 256 bytes, a few marks, and the words of `harness.live.words`; text of anything else
is one token a byte. `write_model` writes it as a model folder, for programs that take prompts
apart into tokens themselves before they ask a replica.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from harness.live.engines.tiny_model import CONFIG
from harness.live.words import BYTES_PER_TOKEN, VOCABULARY

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END = 0
"""The token that ends a text."""
_FIRST_BYTE = len(MARKS)
_FIRST_WORD = _FIRST_BYTE + 256
_NUMBERS = {word.encode(): _FIRST_WORD + index for index, word in enumerate(VOCABULARY)}

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}"
    "{% elif message['content'] %}{% for part in message['content'] %}{{ part['text'] }}"
    "{% endfor %}{% endif %}{% endfor %}"
)
"""Texts alone, without words around them: emulated engines count nothing else."""


def numbers(text: str) -> list[int]:
    """The tokens of a text."""
    raw = text.encode("utf-8", "surrogatepass")
    found: list[int] = []
    at = 0
    while at < len(raw):
        number = _NUMBERS.get(raw[at : at + BYTES_PER_TOKEN])
        follows = raw[at + BYTES_PER_TOKEN : at + BYTES_PER_TOKEN + 1]
        if number is None or follows.isalpha() or follows >= b"\x80":  # of a longer word
            number, size = _FIRST_BYTE + raw[at], 1
        else:
            size = BYTES_PER_TOKEN
        found.append(number)
        at += size
    return found


def write_model(folder: Path, context_limit: int) -> None:
    """Write a model folder (configuration, tokenizer, chat template; no weights).

    The tokenizer takes a word that is in its vocabulary as it is and has no merges for others
    (`ignore_merges` of the tokenizers library).
    """
    folder.mkdir(parents=True, exist_ok=True)
    size = _FIRST_WORD + len(VOCABULARY)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": MARKS[END],
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": context_limit,
    }
    # Nothing is computed with its shape.
    config = {
        **CONFIG,
        "vocab_size": size,
        "max_position_embeddings": context_limit,
        "eos_token_id": END,
        "bos_token_id": END,
    }
    generation = {"eos_token_id": [END], "bos_token_id": END}
    for name, content in (
        ("tokenizer.json", _tokenizer()),
        ("tokenizer_config.json", settings),
        ("generation_config.json", generation),
        ("config.json", config),
    ):
        (folder / name).write_text(json.dumps(content, indent=1), "utf-8")


def _tokenizer() -> dict[str, Any]:
    letters = _byte_letters()
    vocabulary = {mark: number for number, mark in enumerate(MARKS)}
    vocabulary |= {letters[value]: _FIRST_BYTE + value for value in range(256)}
    for word, number in _NUMBERS.items():
        vocabulary["".join(letters[value] for value in word)] = number
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": mark,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, mark in enumerate(MARKS)
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": vocabulary,
            "merges": [],
        },
    }


@cache
def _byte_letters() -> tuple[str, ...]:
    """The letter that stands for each byte in byte-level vocabularies (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return tuple(chr(value) if value in shown else chr(next(hidden)) for value in range(256))
