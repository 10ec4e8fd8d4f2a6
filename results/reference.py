"""The reference page of the metrics: `python -m results.reference > docs/metrics.md`."""

from __future__ import annotations

from results.metrics import FACTS, METRICS

INTERVALS = """
## Means, intervals and differences

A table shows the mean over seeds and its 95 % interval: the percentile bootstrap over seeds
(10,000 resamples, always the same ones), because tasks of one run share a cluster and are not
independent. All schedulers see the same sessions under the same seed, so seeds are drawn jointly.
A difference is 100 x (own - best) / best against the best of the other schedulers, own variants
(`tao` and `tao-no-cache`) aside, with the sign turned so that positive is better; the best is
chosen anew in each resample. Below two seeds there is no interval. Of few seeds it is too narrow:
of normally distributed values it holds the true mean in 84 % of cases with five seeds, 90 % with
ten and 93 % with twenty.
"""


def reference() -> str:
    """The definitions as the Markdown page docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Generated from `results/metrics.py` (`python -m results.reference`). Each metric has one",
        "definition, and `summary.json` of a cell holds the value, the unit and the number of",
        "observations of every one. A value that cannot be known from the run is `null`, never 0.",
        "Percentiles interpolate linearly between order statistics.",
        "",
        "| tag | unit | better | formula | source |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| `{m.tag}` | {m.unit} | {m.better} | {m.formula} | {m.source} |" for m in METRICS]
    lines += ["", *INTERVALS.strip().splitlines()]
    lines += ["", "## Facts", "", "What a driver may state about a cell, for metrics and captions:"]
    lines += ["", *(f"- `{name}`: {meaning}" for name, meaning in FACTS.items()), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(reference(), end="")
