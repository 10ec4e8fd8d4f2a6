"""What errors of prediction cost AMPD and ConServe.

    python -m scripts.conserve_error_sweep

An error turns AMPD's choice between local and remote prefill round with the given probability.
ConServe predicts nothing, so nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping

from results.metrics import BY_TAG
from results.published import Ours
from results.statistics import Estimate, values_of
from scripts._conserve import run_of
from scripts._figures import lines
from scripts._reproduce import Scale, Study, gain, level_text, main, mean_of

ERRORS = (0.0, 0.1, 0.3)
TAGS = ("slo_violations", "ttft_p95", "tpot_p95", "tokens_per_joule")


def study(scale: Scale) -> None:
    report = Study("conserve_error_sweep", "ConServe and AMPD under errors of prediction", scale)
    runs = {
        error: run_of(
            report,
            "error-sweep",
            f"error-{error:g}",
            [f"scheduler_settings.ampd.error_rate={error:g}"] if error else [],
        )
        for error in ERRORS
    }
    values = {
        (error, tag): values_of(run_.cells, BY_TAG[tag])
        for error, run_ in runs.items()
        for tag in TAGS
    }
    report.table(
        "Levels by error rate, 0.3 sessions/s",
        [
            {
                "error rate": error,
                "scheduler": arm,
                **{
                    f"{BY_TAG[tag].title} ({BY_TAG[tag].unit})": level_text(
                        mean_of(values[error, tag][arm])
                    )
                    for tag in TAGS
                },
                "n": len(values[error, "ttft_p95"][arm]),
            }
            for error in ERRORS
            for arm in ("conserve", "ampd")
        ],
    )
    _judge(report, values)
    panels = [
        (f"{BY_TAG[tag].title} ({BY_TAG[tag].unit})", {a: _curve(values, tag, a) for a in ARMS})
        for tag in ("slo_violations", "ttft_p95", "tokens_per_joule")
    ]
    report.finish(("conserve_error_sweep", lines(panels, "probability of a wrong decision")))


ARMS = ("conserve", "ampd")
Values = Mapping[tuple[float, str], Mapping[str, Mapping[int, float]]]


def _curve(values: Values, tag: str, arm: str) -> list[tuple[float, Estimate]]:
    points = [(error, mean_of(values[error, tag][arm])) for error in ERRORS]
    return [(error, found) for error, found in points if found is not None]


def _against_none(values: Values, tag: str, arm: str, error: float) -> dict[int, float]:
    """Seed -> change in the metric's own unit from no error to this error."""
    old, new = values[0.0, tag][arm], values[error, tag][arm]
    return {seed: new[seed] - old[seed] for seed in old.keys() & new.keys()}


def _judge(report: Study, values: Values) -> None:
    rises = {e: mean_of(_against_none(values, "slo_violations", "ampd", e)) for e in ERRORS[1:]}
    most = rises[ERRORS[-1]]
    ttft = gain(
        {"none": values[0.0, "ttft_p95"]["ampd"], "half": values[ERRORS[-1], "ttft_p95"]["ampd"]},
        "none",
        ["half"],
        "lower",
    )
    energy = mean_of(_against_none(values, "tokens_per_joule", "ampd", ERRORS[-1]))
    why = (
        "SLO violations rise by (points) "
        + ", ".join(f"{e:g}: {level_text(found)}" for e, found in rises.items())
        + f"; without error p95 TTFT is {ttft.value if ttft else float('nan'):.0f} % below that at "
        f"{ERRORS[-1]:g}; tokens per joule change by {level_text(energy)}. A wrong decision costs "
        "one transfer or one stalled batch; p95 at that error: TTFT "
        f"{level_text(mean_of(values[ERRORS[-1], 'ttft_p95']['ampd']))} s, TPOT "
        f"{level_text(mean_of(values[ERRORS[-1], 'tpot_p95']['ampd']))} ms, against objectives of "
        "2 s and 100 ms."
    )
    report.judge(
        "conserve.robustness.ampd",
        [] if most is None else [Ours(most.mean, most.interval, most.n)],
        "0.3 sessions/s, 30 % error against none, change of SLO violations in points",
        why,
        text=f"{level_text(most)} points",
        published="violations grow",
    )
    same = _against_none(values, "slo_violations", "conserve", ERRORS[-1])
    found = mean_of(same)
    report.judge(
        "conserve.robustness.conserve",
        [] if found is None else [Ours(found.mean, found.interval, found.n)],
        "0.3 sessions/s, 30 % error against none",
        "Nothing in ConServe reads a prediction.",
    )


if __name__ == "__main__":
    main(study, __doc__)
