"""A Qwen3-shaped model of under a million parameters, for checks of real engines without a GPU, a
hub or a download: configuration, chat template, and a tokenizer trained on local text. It has no
weights: engines make random ones (`--load-format dummy`).

Run by the engine's interpreter, which has the `tokenizers` package; of itself it needs nothing:

    python -I tiny_model.py --text FILE --out FOLDER

Its text is Python's own sources and the made-up text of replays, whose words thereby are one token
each. The shape is that of `tiny-qwen3` in harness/data/models.yaml.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

VOCABULARY = 4096
CONTEXT_LIMIT = 8192
_SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT_LIMIT,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "bos_token_id": 2,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "attention_bias": False,
}

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% elif message['content'] %}{% for part in message['content'] %}{{ part['text'] }}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SOURCES = (
    *("argparse", "asyncio.events", "csv", "difflib", "inspect", "json.decoder", "logging"),
    *("pathlib", "socket", "subprocess", "textwrap", "threading", "typing", "zipfile"),
)


def training_text(made_up: str) -> str:
    """Made-up text, then sources of Python's library."""
    sources = []
    for name in _SOURCES:
        file = import_module(name).__file__
        if file is not None:
            sources.append(Path(file).read_text("utf-8"))
    return "\n".join([made_up, *sources])


def write_model(text: str, folder: Path) -> None:
    """Write configuration and tokenizer.

    Raises:
        ImportError: there is no `tokenizers` package.
    """
    tokenizers = import_module("tokenizers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(_SPECIAL),
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": CONTEXT_LIMIT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), "utf-8")
    # Last: a folder that has it is complete.
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    write_model(training_text(given.text.read_text("utf-8")), given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
