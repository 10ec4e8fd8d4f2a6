"""The reference page of the metrics: `python -m results.reference > docs/metrics.md`."""

from __future__ import annotations

from results.metrics import FACTS, METRICS

INTERVALS = """
## Means, intervals and differences

A table shows the mean over seeds and its 95 % interval: the bootstrap over seeds (10,000 resamples,
always the same ones), because tasks of one run share a cluster and are not independent. All
schedulers see the same sessions under the same seed, so seeds are drawn jointly. A difference is
100 x (own - best) / best against the best of the other schedulers, own variants (`tao` and
`tao-no-cache`) aside, with the sign turned so that positive is better; the best is chosen anew in
each resample. Below two seeds there is no interval.

The ends are not the 2.5 % and 97.5 % points of the resamples, which of few seeds lie too close
together, but the expanded percentiles of T. Hesterberg ("What Teachers Should Know About the
Bootstrap", The American Statistician 69, 2015): Phi(-sqrt(n / (n - 1)) t) and its complement, t
being the 97.5 % point of Student's distribution with n - 1 degrees of freedom; for five seeds 0.1 %
and 99.9 %. How often the interval then holds the true mean, of 4,000 simulated samples each (in
brackets with plain percentiles):

| seeds | normal | exponential |
|---:|---:|---:|
| 2 | 50 % (50 %) | 45 % (45 %) |
| 3 | 75 % (75 %) | 70 % (70 %) |
| 4 | 87 % (78 %) | 83 % (76 %) |
| 5 | 92 % (84 %) | 87 % (78 %) |
| 10 | 94 % (90 %) | 91 % (87 %) |
| 20 | 95 % (93 %) | 93 % (90 %) |

No interval made of resamples leaves the range of the seeds, which bounds the first three rows.
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
