"""The models that ship: shape, weights as served, and the geometry of their KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import cast, get_args

from agentsched import UsageError
from harness.fields import Fields
from harness.sim.engine_types import WindowHits
from harness.specfile import Document, closest, parse_document

DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8": 1.0, "float4": 0.5}
"""Bytes of one value, by the names vLLM uses."""


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """How much memory the KV cache of one sequence takes, and how it is cut."""

    heads: int
    bytes_per_token: float
    """One copy, all layers."""
    dtype: str = "bfloat16"
    replicated: bool = False
    """Every tensor-parallel rank holds all of it, so that more ranks add no capacity."""
    block_tokens: int = 16
    """Tokens of a block. vLLM's default is 16; compressed attention needs 256."""
    block_fixed: bool = False
    """Whether the attention fixes the block size."""
    sequence_blocks: int = 0
    """Blocks of the same pool that each live sequence holds whatever its length, for windows and
    compressor states."""
    window_hits: WindowHits = "dense"
    """How prefix hits get along with sliding windows (harness.sim.engine_types)."""
    window_tokens: int = 0
    """Sliding window of hybrid attention. 0: none."""

    def bytes_per_token_on_gpu(self, tensor_parallel: int) -> float:
        """Heads are split over the ranks as far as there are heads; then they are copied."""
        shards = 1 if self.replicated else min(tensor_parallel, self.heads)
        return self.bytes_per_token / shards


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts."""

    count: int
    active: int
    """Experts a token runs through, shared ones included."""


@dataclass(frozen=True, slots=True)
class Model:
    """One model as it is served. Sizes in GiB (2^30 bytes), parameters in units of 10^9."""

    name: str
    repository: str
    layers: int
    hidden: int
    heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context_limit: int
    """Tokens of prompt and output together."""
    dtype: str
    """Of the weights."""
    params_b: float
    active_params_b: float
    weights_gib: float
    overhead_gib: float
    """GPU memory that is neither weights nor KV. An estimate, within 2 GiB."""
    kv: KvGeometry
    experts: Experts | None = None
    tied_embeddings: bool = False


@cache
def models() -> dict[str, Model]:
    """Every model that ships, by name.

    Raises:
        SpecError: the data file of the package is damaged.
    """
    source = files("harness") / "data" / "models.yaml"
    document = parse_document(source.read_text("utf-8"), "harness/data/models.yaml")
    return {name: _read_model(document, name) for name in document.data}


def find_model(name: str) -> Model:
    """The model called `name`.

    Raises:
        UsageError: no such model; the message lists those there are.
    """
    found = models().get(name)
    if found is None:
        near = closest(name, sorted(models()))
        hint = f"did you mean `{near}`? " if near else ""
        raise UsageError(f"no model `{name}`", f"{hint}models: {', '.join(sorted(models()))}")
    return found


def _read_model(document: Document, name: str) -> Model:
    fields = Fields(document, (name,))
    model = Model(
        name=name,
        repository=fields.text("repository"),
        layers=fields.whole("layers"),
        hidden=fields.whole("hidden"),
        heads=fields.whole("heads"),
        head_dim=fields.whole("head_dim"),
        intermediate=fields.whole("intermediate"),
        vocabulary=fields.whole("vocabulary"),
        context_limit=fields.whole("context_limit"),
        dtype=fields.choice("dtype", tuple(DTYPE_BYTES)),
        params_b=fields.number("params_b"),
        active_params_b=fields.number("active_params_b"),
        weights_gib=fields.number("weights_gib"),
        overhead_gib=fields.number("overhead_gib"),
        kv=_read_kv(fields.group("kv")),
        experts=_read_experts(fields.group("moe")) if "moe" in fields else None,
        tied_embeddings=fields.flag("tied_embeddings", False),
    )
    fields.done()
    return model


def _read_kv(fields: Fields) -> KvGeometry:
    kv = KvGeometry(
        heads=fields.whole("heads"),
        bytes_per_token=fields.number("bytes_per_token"),
        dtype=fields.choice("dtype", tuple(DTYPE_BYTES), "bfloat16"),
        replicated=fields.flag("replicated", False),
        block_tokens=fields.whole("block_tokens", 16),
        block_fixed="block_tokens" in fields,
        sequence_blocks=fields.whole("sequence_blocks", 0, least=0),
        window_hits=cast(WindowHits, fields.choice("window_hits", get_args(WindowHits), "dense")),
        window_tokens=fields.whole("window_tokens", 0, least=0),
    )
    fields.done()
    return kv


def _read_experts(fields: Fields) -> Experts:
    experts = Experts(fields.whole("experts"), fields.whole("active"))
    fields.done()
    return experts
