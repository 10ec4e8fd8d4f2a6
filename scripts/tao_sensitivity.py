"""What TAO's open choices change: one simulated run per setting, against the defaults.

    python -m scripts.tao_sensitivity
    python -m scripts.tao_sensitivity --workers 160 --sessions 500 --seeds 5

Figures are simulated. With few seeds, differences of a few percent are within the noise.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from harness.experiment import run
from harness.overrides import Flags
from results.store import load_run

CHOICES: dict[str, tuple[str, ...]] = {
    "defaults": ("",),
    "credit quantum": (
        "credit_quantum_tokens=1",
        "credit_quantum_tokens=1024",
        "credit_quantum_tokens=16384",
    ),
    "footprint sign": ("footprint_sign=-1",),
    "range R of the margin": (
        "history_window=16",
        "margin_cap_s=0.0",
        "margin_cap_s=60.0 margin_cap_of_mean=1000.0",
    ),
    "admission quantum Q": ("quantum_tokens=256", "quantum_tokens=1024", "quantum_tokens=4096"),
    "discard rule": ("discard=skip",),
    "pause order": ("pause_order=thunder",),
}
COLUMNS = ("latency_mean", "latency_p99", "ttft_mean", "decode_tps", "cache_hit", "pause_wait_mean")


def measure(settings: str, folder: Path, options: argparse.Namespace) -> pd.DataFrame:
    """The cells of one run under these settings; a finished run is not repeated."""
    flags = Flags(
        schedulers=["tao"],
        workloads=[options.workload],
        workers=[options.workers],
        seeds=options.seeds,
        assignments=[
            f"workloads.0.sessions={options.sessions}",
            *(f"scheduler_settings.tao.{one}" for one in settings.split()),
        ],
    )
    run("quickstart", out=folder, jobs=options.jobs, flags=flags).check()
    cells: pd.DataFrame = load_run(folder).cells
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workload", default="swe-bench-mini")
    parser.add_argument("--workers", type=int, default=128)
    parser.add_argument("--sessions", type=int, default=240)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("-o", "--out", type=Path, default=Path("runs") / "tao-sensitivity")
    options = parser.parse_args()
    base: pd.Series[float] | None = None
    print(f"{options.workload}, {options.workers} workers, simulated; changes against the defaults")
    print(f"{'setting':<58}" + "".join(f"{column:>17}" for column in COLUMNS))
    for choice, variants in CHOICES.items():
        for settings in variants:
            folder = options.out / (settings.replace(" ", "+") or "defaults")
            means = measure(settings, folder, options)[list(COLUMNS)].astype(float).mean()
            if base is None:
                base = means
                cells = [f"{means[column]:17.2f}" for column in COLUMNS]
            else:
                cells = [f"{100 * (means[c] / base[c] - 1):+16.1f}%" for c in COLUMNS]
            print(f"{choice + ': ' + settings if settings else choice:<58}" + "".join(cells))


if __name__ == "__main__":
    main()
