"""The GPU kinds that ship: memory, rates, links and power."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from agentsched import UsageError
from harness.fields import Fields
from harness.specfile import Document, closest, parse_document


@dataclass(frozen=True, slots=True)
class Band:
    """An assumed value and the range it may lie in."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class GpuPower:
    """Watts of one GPU."""

    cap_w: float
    """Board power; a lower cap can be set on a replica."""
    idle_w: Band
    prefill_need_w: Band
    """Drawn by compute-bound work at full clocks."""
    decode_need_w: Band
    """Drawn by memory-bound work at full clocks."""


@dataclass(frozen=True, slots=True)
class GpuKind:
    """One kind of GPU. Bandwidths in GB/s (10^9 bytes) per direction; rates dense."""

    name: str
    description: str
    memory_gib: float
    memory_bandwidth_gbs: float
    bf16_tflops: float
    fp8_tflops: float
    """0: none."""
    nvlink_gbs: float
    """0: none; then GPUs of a replica talk over PCIe."""
    pcie_gbs: float
    network_gbs: float
    link_latency_us: float
    power: GpuPower

    @property
    def peer_gbs(self) -> float:
        """Between GPUs of one replica."""
        return self.nvlink_gbs or self.pcie_gbs


@cache
def gpus() -> dict[str, GpuKind]:
    """Every GPU kind that ships, by name.

    Raises:
        SpecError: the data file of the package is damaged.
    """
    source = files("harness") / "data" / "gpus.yaml"
    document = parse_document(source.read_text("utf-8"), "harness/data/gpus.yaml")
    return {name: _read_gpu(document, name) for name in document.data}


def find_gpu(name: str) -> GpuKind:
    """The GPU kind called `name`.

    Raises:
        UsageError: no such kind; the message lists those there are.
    """
    found = gpus().get(name)
    if found is None:
        near = closest(name, sorted(gpus()))
        hint = f"did you mean `{near}`? " if near else ""
        raise UsageError(f"no GPU kind `{name}`", f"{hint}kinds: {', '.join(sorted(gpus()))}")
    return found


def _read_gpu(document: Document, name: str) -> GpuKind:
    fields = Fields(document, (name,))
    power = fields.group("power")
    gpu = GpuKind(
        name=name,
        description=fields.text("description"),
        memory_gib=fields.number("memory_gib"),
        memory_bandwidth_gbs=fields.number("memory_bandwidth_gbs"),
        bf16_tflops=fields.number("bf16_tflops"),
        fp8_tflops=fields.number("fp8_tflops", above=-1.0),
        nvlink_gbs=fields.number("nvlink_gbs", above=-1.0),
        pcie_gbs=fields.number("pcie_gbs"),
        network_gbs=fields.number("network_gbs"),
        link_latency_us=fields.number("link_latency_us"),
        power=GpuPower(
            cap_w=power.number("cap_w"),
            idle_w=_band(power, "idle_w"),
            prefill_need_w=_band(power, "prefill_need_w"),
            decode_need_w=_band(power, "decode_need_w"),
        ),
    )
    power.done()
    fields.done()
    return gpu


def _band(fields: Fields, key: str) -> Band:
    value, low, high = fields.numbers(key, 3)
    if not low <= value <= high:
        raise fields.error(key, "is not [value, low, high] with low <= value <= high", "reorder it")
    return Band(value, low, high)
