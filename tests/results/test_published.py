from __future__ import annotations

from dataclasses import replace

import pytest

from harness.topology import topology_names
from results.metrics import BY_TAG
from results.published import VERDICTS, Claim, Ours, Verdict, beside, claims, find, tally, verdict
from results.statistics import Interval

OURS = {
    *("4x2xh100", "2x4xh100", "1x8xh100", "4xa40", "1p3d-a40"),
    *("a40-300w-200w", "1p3d-a40-300w-200w"),
}


def claim_of(key: str) -> Claim:
    (found,) = (claim for claim in claims() if claim.id == key)
    return found


def ours(value: float, low: float, high: float) -> Ours:
    return Ours(value, Interval(low, high), 5)


def test_the_package_holds_every_published_figure() -> None:
    assert len(claims()) == 75
    assert len({claim.id for claim in claims()}) == 75
    assert {claim.paper for claim in claims()} == {"tao", "smetric", "conserve"}
    kinds = {"relative", "direction", "absolute", "bound", "count", "parameter"}
    assert {claim.kind for claim in claims()} == kinds


def test_a_figure_is_found_by_its_setting() -> None:
    (found,) = find(workload="swe-bench-verified", workers=128, metric="latency_mean")
    assert (found.low, found.comparator) == (-2.5, "thunderagent")
    at_96 = find(workload="swe-bench-verified", workers=96, model="qwen3-32b", scheduler="tao")
    assert [c.metric for c in at_96] == ["latency_mean", "ttft_mean", "decode_tps"]
    assert find(metric="latency_mean", workers=97) == []


@pytest.mark.parametrize(
    ("published", "fitting"),
    [
        ("4 nodes x 2xH100", {"4x2xh100"}),
        ("2 nodes x 4xH100", {"2x4xh100"}),
        ("1 node x 8xH100 (TP8)", {"1x8xh100"}),
        ("A40 cluster", {"4xa40", "1p3d-a40"}),
        ("A40: 300 W prefiller, 200 W decoders", {"a40-300w-200w", "1p3d-a40-300w-200w"}),
        ("prefill-decode disaggregation", set()),
        (None, OURS),
    ],
)
def test_topologies_are_matched_by_shape(published: str | None, fitting: set[str]) -> None:
    claim = replace(claims()[0], topology=published)
    assert {name for name in OURS if claim.fits_topology(name)} == fitting


def test_every_published_cluster_is_one_of_ours() -> None:
    """Topologies get new names; a claim must not lose its place beside a table by that."""
    assert set(topology_names()) >= OURS
    # What these two papers leave open has no one shape; their scripts say what they take.
    open_shapes = {"prefill-decode colocation + global KV store", "prefill-decode disaggregation"}
    # Ablation: named by its replicas alone.
    open_shapes |= {"4 replicas"}
    for claim in claims():
        if claim.topology is not None and claim.topology not in open_shapes:
            fitting = [name for name in topology_names() if claim.fits_topology(name)]
            assert fitting, claim.id


def test_claims_beside_a_table_need_the_same_setting() -> None:
    def ids(**changes: object) -> list[str]:
        setting = {
            "model": "qwen3-32b",
            "topology": "4x2xh100",
            "workload": "swe-bench-verified",
            "workers": 96,
            "schedulers": ["tao", "thunderagent"],
        }
        return [claim.id for claim in beside(**(setting | changes))]  # type: ignore[arg-type]

    assert ids() == [
        "tao.q32.sweverified.96.latency",
        "tao.q32.sweverified.ttft",
        "tao.q32.sweverified.decode",
    ]
    assert ids(topology="4x1xh100") == []
    assert ids(model="qwen3-8b") == []
    assert ids(schedulers=["thunderagent"]) == []
    assert ids(workers=100) == []
    assert ids(workload=None) == []
    assert "tao.automationbench.128.ttft" in ids(workload="automationbench", workers=128)


def test_figures_as_text() -> None:
    text = {claim.id: claim.text() for claim in claims()}
    assert text["tao.q32.sweverified.96.latency"] == "+8.3 %"
    assert text["tao.q32.sweverified.ttft"] == "+12.9…29.9 %"
    assert text["tao.automationbench.128.ttft"] == "-504 %"
    assert text["tao.headline.latency"] == "≤ +26.8 %"
    assert text["smetric.reuse.agent"] == "≥ +80 %"
    assert text["tao.ablation.full.decode"] == "1417.97 tok/s"
    assert text["tao.ds.terminal.64.ttft"] == "better"
    assert text["tao.predictor.tools"] == "10967"


RELATIVE = claim_of("tao.q32.sweverified.96.latency")  # +8.3 %
RANGE = claim_of("tao.q32.sweverified.ttft")  # +12.9 to +29.9 %
REGRESSION = claim_of("tao.automationbench.128.latency")  # -7 %
DIRECTION = claim_of("tao.ds.terminal.16.latency")
LEVEL = claim_of("tao.ablation.full.cache_hit")  # 96.31 %
BOUND = claim_of("tao.headline.latency")
NO_EFFECT = claim_of("conserve.robustness.conserve")  # 0 %
NO_VIOLATION = claim_of("conserve.slo")  # a level of 0


@pytest.mark.parametrize(
    ("claim", "figure", "wanted"),
    [
        # Within 30 % of 8.3 means from 5.81 to 10.79.
        (RELATIVE, ours(5.9, 1, 9), "reproduced"),
        (RELATIVE, ours(10.7, 1, 19), "reproduced"),
        (RELATIVE, ours(5.7, 1, 9), "direction only"),
        (RELATIVE, ours(10.9, 1, 19), "direction only"),
        (RELATIVE, ours(8.3, -0.1, 16), "inconclusive"),
        (RELATIVE, ours(-1, -9, 0.1), "inconclusive"),
        (RELATIVE, ours(-5, -9, -0.1), "not reproduced"),
        (RELATIVE, Ours(8.3, None, 1), "inconclusive"),
        # 12.9 - 30 % = 9.03, 29.9 + 30 % = 38.87
        (RANGE, ours(20, 10, 30), "reproduced"),
        (RANGE, ours(9.1, 1, 30), "reproduced"),
        (RANGE, ours(9.0, 1, 30), "direction only"),
        (RANGE, ours(39, 1, 60), "direction only"),
        # A reported regression: -7 - 2.1 to -7 + 2.1
        (REGRESSION, ours(-6, -9, -1), "reproduced"),
        (REGRESSION, ours(-60, -90, -10), "direction only"),
        (REGRESSION, ours(-6, -9, 1), "inconclusive"),
        (REGRESSION, ours(6, 1, 9), "not reproduced"),
        (DIRECTION, ours(80, 1, 90), "reproduced"),
        (DIRECTION, ours(80, -1, 90), "inconclusive"),
        (DIRECTION, ours(-2, -4, -1), "not reproduced"),
        # 30 % of 96.31 below is 67.4
        (LEVEL, ours(70, 69, 71), "reproduced"),
        (LEVEL, ours(60, 59, 61), "not reproduced"),
        (BOUND, ours(99, 98, 100), "shown"),
        (NO_EFFECT, ours(0, 0, 0), "reproduced"),
        (NO_EFFECT, ours(0.3, -1, 1), "inconclusive"),
        (NO_EFFECT, ours(3, 1, 4), "not reproduced"),
        (NO_VIOLATION, ours(0, 0, 0), "reproduced"),
        (NO_VIOLATION, ours(0.5, 0, 1), "not reproduced"),
    ],
)
def test_verdict(claim: Claim, figure: Ours, wanted: Verdict) -> None:
    assert verdict(claim, [figure], follows_paper=False) == wanted


def test_an_opposite_sign_contradicts_only_what_we_follow_to_the_letter() -> None:
    against = ours(-5, -9, -1)
    assert verdict(RELATIVE, [against], follows_paper=True) == "contradicted"
    assert verdict(RELATIVE, [against], follows_paper=False) == "not reproduced"


def test_assumed_constants_never_reproduce_a_size() -> None:
    fits = [ours(8.3, 5, 10)]
    assert verdict(RELATIVE, fits, follows_paper=True, assumed_constants=True) == "direction only"


def test_a_range_over_settings_takes_all_of_them() -> None:
    good, wide, bad = ours(15, 10, 20), ours(15, -1, 30), ours(-5, -9, -1)
    assert verdict(RANGE, [good, good, good], follows_paper=False) == "reproduced"
    assert verdict(RANGE, [good, ours(5, 1, 9)], follows_paper=False) == "direction only"
    assert verdict(RANGE, [good, wide], follows_paper=False) == "inconclusive"
    assert verdict(RANGE, [good, wide, bad], follows_paper=False) == "not reproduced"
    assert verdict(RANGE, [], follows_paper=False) == "not testable"


def test_tally_counts_in_order() -> None:
    counted = tally(["reproduced", "shown", "reproduced"])
    assert list(counted) == list(VERDICTS)
    assert counted["reproduced"] == 2
    assert counted["contradicted"] == 0


def test_main_table_metrics_of_the_papers_exist() -> None:
    named = {"latency_mean", "ttft_mean", "decode_tps", "cache_hit", "pause_wait_mean", "tps"}
    named |= {"prefill_tps", "slo_violations", "tokens_per_joule", "ttfet_p95"}
    assert named <= {claim.metric for claim in claims()}
    assert named <= set(BY_TAG)
