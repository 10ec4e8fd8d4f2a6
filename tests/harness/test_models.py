"""Shipped models and GPU kinds: sizes follow from the shapes; names are checked."""

from __future__ import annotations

import pytest

from agentsched import SpecError, UsageError
from harness.fields import Fields
from harness.gpus import find_gpu, gpus
from harness.models import DTYPE_BYTES, Model, find_model, models
from harness.specfile import parse_document

GQA = ["llama-3.1-8b", "qwen3-0.6b", "qwen3-30b-a3b", "qwen3-32b", "qwen3-8b"]


def counted(model: Model) -> tuple[float, float]:
    """Parameters (all, active for one token) in 10^9, from the shape of a Llama-like decoder."""
    width, kv = model.heads * model.head_dim, model.kv.heads * model.head_dim
    norms = 2 * model.head_dim if model.name.startswith("qwen3") else 0  # of queries and keys
    attention = model.hidden * (2 * width + 2 * kv) + norms + 2 * model.hidden
    feed_forward = 3 * model.hidden * model.intermediate
    embeddings = model.vocabulary * model.hidden * (1 if model.tied_embeddings else 2)
    outside = embeddings + model.hidden
    if model.experts is None:
        total = outside + model.layers * (attention + feed_forward)
        return total / 1e9, total / 1e9
    router = model.experts.count * model.hidden
    layer = attention + router
    return tuple(  # type: ignore[return-value]
        (outside + model.layers * (layer + n * feed_forward)) / 1e9
        for n in (model.experts.count, model.experts.active)
    )


@pytest.mark.parametrize("name", GQA)
def test_parameters_weights_and_kv_follow_from_the_shape(name: str) -> None:
    model = find_model(name)
    total, active = counted(model)
    assert model.params_b == pytest.approx(total, abs=1e-3)
    assert model.active_params_b == pytest.approx(active, abs=1e-3)
    assert model.weights_gib == pytest.approx(total * 1e9 * 2 / 2**30, abs=0.01)
    assert model.kv.bytes_per_token == 2 * model.layers * model.kv.heads * model.head_dim * 2


def test_other_kv_geometries() -> None:
    glm = find_model("glm-4.7")
    assert glm.kv.bytes_per_token == 2 * 92 * 8 * 128 * 2
    # 21 layers of 180 bytes a token and 20 of 6.75.
    flash = find_model("deepseek-v4-flash")
    assert flash.kv.bytes_per_token == 21 * 180 + 20 * 6.75
    assert (flash.kv.block_tokens, flash.kv.replicated, flash.kv.window_tokens) == (256, True, 128)
    # vLLM pads pages to 576 bytes. A block of 256 tokens: 64 states of 584 bytes (37,376, padded
    # 37,440) and of 132 (8,448: 8,640) in 21 layers, 2 of 584 (1,168: 1,728) in 20 layers.
    widest = 21 * (37_440 + 8_640) + 20 * 1_728
    assert widest == 256 * flash.kv.bytes_per_token
    # 43 layers of 64 window tokens are too much for one such block: two groups of at most 22. The
    # float32 states fit: 4 tokens of 8,192 (32,832) and of 2,048 bytes (8,640) in 21 layers, 8
    # tokens of 4,096 bytes (32,832) in 20.
    assert 22 * 37_440 < widest < 43 * 37_440
    assert max(21 * (32_832 + 8_640), 20 * 32_832) < widest
    held = [-(-(window - 1) // block) + 1 for window, block in ((128, 64), (8, 4), (128, 8))]
    assert flash.kv.sequence_blocks == 2 * held[0] + held[1] + held[2] == 26


def test_kv_heads_are_shared_by_ranks_and_then_copied() -> None:
    qwen = find_model("qwen3-32b").kv
    assert [qwen.bytes_per_token_on_gpu(tp) for tp in (1, 2, 8, 16)] == [
        262144, 131072, 32768, 32768,
    ]  # fmt: skip
    flash = find_model("deepseek-v4-flash").kv
    assert flash.bytes_per_token_on_gpu(4) == flash.bytes_per_token_on_gpu(1) == 3915


def test_names_and_limits() -> None:
    assert sorted(models()) == [
        "deepseek-v4-flash", "glm-4.7", "llama-3.1-8b", "qwen3-0.6b", "qwen3-30b-a3b",
        "qwen3-32b", "qwen3-8b", "smollm2-135m", "tiny-qwen3",
    ]  # fmt: skip
    assert find_model("qwen3-32b").context_limit == 40_960
    for model in models().values():
        assert model.dtype in DTYPE_BYTES
        assert model.active_params_b <= model.params_b
        assert model.heads % model.kv.heads == 0


def test_unknown_names_list_those_there_are() -> None:
    with pytest.raises(UsageError, match="no model `qwen3-32`") as model:
        find_model("qwen3-32")
    assert "did you mean `qwen3-32b`" in model.value.remedy
    assert "deepseek-v4-flash, glm-4.7" in model.value.remedy
    with pytest.raises(UsageError, match="no GPU kind `h200`") as gpu:
        find_gpu("h200")
    assert "a40, cpu, h100" in gpu.value.remedy
    assert gpu.value.exit_code == 2


def test_gpu_bands_hold_their_values() -> None:
    for gpu in gpus().values():
        power = gpu.power
        for band in (power.idle_w, power.prefill_need_w, power.decode_need_w):
            assert band.low <= band.value <= band.high <= power.cap_w
        assert power.idle_w.high < power.decode_need_w.low < power.prefill_need_w.high
        assert gpu.peer_gbs > 0


def fields(text: str) -> Fields:
    return Fields(parse_document(text, "m.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: x", r"m.yaml, line 1, field `a`: is `x`, not a whole number of 1 or more"),
        ("a: true", r"field `a`: is `True`, not a whole number"),
        ("b: 1", r"lacks `a`"),
        ("a: 1\nbb: 2", r"m.yaml, line 2, field `bb`: is not a known field"),
        ("a: 1\nb: 1.5", r"line 2, field `b`: is `1.5`, not a number above 0 and at most 1"),
        ("a: 1\nc: [1, 2]", r"line 2, field `c`: is a list, not 3 numbers"),
        ("a: 1\nd: 1", r"line 2, field `d`: is `1`, not true or false"),
        ("a: 1\ne: []", r"line 2, field `e`: is an empty list, not a list"),
        ("a: 1\nf: 3", r"line 2, field `f`: is `3`, not a mapping"),
        ("a: 1\ng: ''", r"line 2, field `g`: is ``, not text"),
    ],
)
def test_fields_name_file_line_and_field(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_all(fields(text))


def read_all(read: Fields) -> None:
    read.whole("a")
    read.number("b", 0.5, most=1.0)
    if "c" in read:
        read.numbers("c", 3)
    if "e" in read:
        read.groups("e")
    if "f" in read:
        read.group("f")
    if "g" in read:
        read.text("g")
    read.flag("d", False)
    read.done()
