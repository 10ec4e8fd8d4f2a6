"""Balance and cache hit under SMetric and its baselines: the two things it trades.

python -m scripts.smetric_balance
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from results.drawing import looks, new_axes, styled
from results.groups import Group
from scripts._reproduce import Scale, Study, level_rows, main
from scripts._smetric import PRESETS, group_of, run_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TAGS = ("load_imbalance", "cache_hit", "ttft_p95", "tpot_p95", "moves_per_session")


def study(scale: Scale) -> None:
    report = Study("smetric_balance", "SMetric: balance against cache hit", scale)
    groups = {setting: group_of(run_of(report, setting)) for setting in PRESETS}
    rows = []
    for setting, group in groups.items():
        rows += level_rows(group, setting, TAGS)
    report.table("Load imbalance (1 is even), cache hit and what follows", rows)
    report.finish(("smetric_balance", _figure(groups)))


@styled
def _figure(groups: dict[str, Group]) -> Figure:
    """One panel a setting: cache hit over imbalance; up and to the left is better."""
    figure, axes = new_axes(2, 2, 5.6)
    names = list(dict.fromkeys(name for group in groups.values() for name in group.schedulers))
    style_of = looks(names)
    drawn: dict[str, Any] = {}
    for place, (setting, group) in enumerate(groups.items()):
        axis = axes[divmod(place, 2)]
        for name in group.schedulers:
            across = group.figures("load_imbalance")[name].estimate
            up = group.figures("cache_hit")[name].estimate
            if across is None or up is None:
                continue
            look = style_of[name]
            (drawn[name],) = axis.plot(
                [across.mean], [up.mean], look.marker, color=look.colour, ms=7, label=name,
                linestyle="none",
            )  # fmt: skip
        axis.set_title(setting)
        axis.set_xlabel("load imbalance (1 is even)")
        axis.set_ylabel("cache hit (%)")
        axis.margins(0.15)
    figure.legend(list(drawn.values()), list(drawn), loc="outside lower center", ncols=5)
    return figure


if __name__ == "__main__":
    main(study, __doc__)
