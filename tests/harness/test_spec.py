"""Run specifications: what is accepted, and that every fault names its place."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import SpecError, UsageError
from harness.overrides import Flags
from harness.settings import settings_from
from harness.sim.settings import Fault, SimSettings
from harness.spec import RunSpec, load_spec, preset_names
from harness.specfile import MAX_BYTES, parse_document, read_document

GOOD = """\
model: qwen3-32b
topology: 4x2xh100
workloads:
  - name: swe-bench-mini-short
    workers: [96, 128]
schedulers: [tao, smetric]
"""
"""Six lines; what a test appends is line 7."""


def spec_of(tmp_path: Path, text: str | bytes, **flags: Any) -> RunSpec:
    file = tmp_path / "spec.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_spec(file, Flags(**flags))


def fault(tmp_path: Path, text: str | bytes) -> SpecError:
    with pytest.raises(SpecError) as caught:
        spec_of(tmp_path, text)
    assert str(tmp_path / "spec.yaml") in caught.value.message
    assert caught.value.remedy
    assert caught.value.exit_code == 2
    return caught.value


def test_defaults_are_filled_in(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, GOOD)
    assert spec.workloads[0].workers == (96, 128)
    assert spec.schedulers == ("tao", "smetric")
    assert (spec.seeds, spec.engine, spec.gateway_share) == ((0,), "sim", 1.0)
    assert spec.text == GOOD


def test_single_values_stand_for_lists(tmp_path: Path) -> None:
    text = GOOD.replace("[96, 128]", "96").replace("[tao, smetric]", "tao") + "seeds: 3\n"
    spec = spec_of(tmp_path, text)
    assert spec.workloads[0].workers == (96,)
    assert spec.schedulers == ("tao",)
    assert spec.seeds == (0, 1, 2)


@pytest.mark.parametrize(
    ("text", "line", "field", "words"),
    [
        (GOOD + "sedes: 5\n", 7, "sedes", "unknown field `sedes`"),
        (GOOD + "seeds: 0\n", 7, "seeds", "0 seeds"),
        (GOOD + "seeds: 100000000\n", 7, "seeds", "100000000 seeds"),
        (GOOD + "seeds: [1, 1]\n", 7, "seeds", "seed `1` is listed twice"),
        (GOOD + "seeds: [-1]\n", 7, "seeds.0", "must be 0 or more"),
        (GOOD + "model: again\n", 7, "model", "given twice (first on line 1)"),
        (GOOD + "routers: smg\n", 7, "routers", "real programs, which simulated replicas"),
        (GOOD + "engine: vlm\n", 7, "engine", "must be `sim`"),
        (GOOD + "gateway_share: 1.5\n", 7, "gateway_share", "must be 1 or less"),
        (GOOD + "gateway_share: 0\n", 7, "gateway_share", "must be more than 0"),
        (GOOD + "gateway_share: big\n", 7, "gateway_share", "must be a number"),
        (GOOD + "name: 2\n", 7, "name", "must be text"),
        (GOOD + "sim: []\n", 7, "sim", "must be a mapping"),
        (GOOD + "1: 2\n", 7, "1", "unknown field `1`"),
        (GOOD + "<<: {a: b}\n", 7, None, "key that is not plain text"),
        (GOOD + "? [a]\n: b\n", 7, None, "key that is not plain text"),
        (GOOD + "description: *nothing\n", 7, None, "undefined alias"),
        (GOOD + "memory:\n  block_sise: 16\n", 8, "memory.block_sise", "unknown field"),
        (GOOD.replace("[96, 128]", "0"), 5, "workloads.0.workers.0", "must be 1 or more"),
        (GOOD.replace("128]", "-3]"), 5, "workloads.0.workers.1", "must be 1 or more"),
        (GOOD.replace("128]", "96]"), 5, "workloads.0.workers", "`96` is listed twice"),
        (GOOD.replace("[96, 128]", "many"), 5, "workloads.0.workers.0", "a whole number"),
        (GOOD.replace("[96, 128]", "[9.5]"), 5, "workloads.0.workers.0", "a whole number"),
        (GOOD.replace("[96, 128]", "[true]"), 5, "workloads.0.workers.0", "a whole number"),
        (GOOD.replace("    workers", "    worker"), 5, "workloads.0.worker", "unknown field"),
        (GOOD.replace("[tao, smetric]", "[]"), 6, "schedulers", "a list of at least 1"),
        (GOOD.replace("smetric", "tao"), 6, "schedulers", "`tao` is listed twice"),
        (GOOD.replace("smetric", "my.py:Mine"), 6, "schedulers.1", "names code to run"),
        (GOOD.replace("topology: 4x2xh100\n", ""), 1, None, "`topology` is missing"),
        ("- a\n- b\n", 1, None, "not a mapping"),
        ("just words\n", 1, None, "not a mapping"),
        ("", None, None, "is empty"),
        ("# only a comment\n", None, None, "is empty"),
        ("model: [\n", 2, None, "not valid YAML"),
        ("\tmodel: x\n", 1, None, "not valid YAML"),
        ("model: " + "[" * 5000, 1, None, "nested more than"),
        ("a: &a [*a]\n", 1, None, "anchor that contains itself"),
        (GOOD + "description: " + "9" * 5000 + "\n", 7, "description", "cannot read the value"),
        (b"\x7fELF\x02\x01\xff\xfe\x00", 1, None, "not UTF-8 text"),
        (b"model: a\x00b\n", 1, None, "does not allow"),
    ],
)
def test_faults_name_line_field_and_reason(
    tmp_path: Path, text: str | bytes, line: int | None, field: str | None, words: str
) -> None:
    error = fault(tmp_path, text)
    assert words in error.message
    assert (error.line, error.field) == (line, field)


def test_misspelt_field_is_guessed(tmp_path: Path) -> None:
    assert "did you mean `schedulers`?" in fault(tmp_path, GOOD + "scheduler: [tao]\n").remedy


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system", "!!python/name:os.system", "!run", "!!str", "!"]
)
def test_tags_never_run(tmp_path: Path, tag: str) -> None:
    victim = tmp_path / "touched"
    error = fault(tmp_path, GOOD + f"description: {tag} ['touch {victim}']\n")
    assert error.line == 7
    assert "tags are not allowed" in error.message
    assert not victim.exists()


def test_anchor_bomb_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert "more than 20,000 values" in fault(tmp_path, "\n".join(lines)).message


def test_plain_anchors_work(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, GOOD.replace("[tao, smetric]", "&s [tao]") + "description: &d hello\n")
    assert (spec.schedulers, spec.description) == (("tao",), "hello")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="No such file"):
        load_spec(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="is a folder"):
        load_spec(tmp_path)
    (tmp_path / "big.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(SpecError, match="is larger than"):
        load_spec(tmp_path / "big.yaml")


def test_unknown_preset_is_guessed() -> None:
    with pytest.raises(UsageError) as caught:
        load_spec("quikstart")
    assert "did you mean `quickstart`?" in caught.value.remedy


def test_yaml_without_surprises() -> None:
    text = "a: 1e3\nb: 1:30\nc: 010\nd: no\ne: 2024-01-01\nf: -.5\ng: ~\nh: true\ni: -7\n"
    assert parse_document(text, "here").data == {
        "a": 1000.0,
        "b": "1:30",
        "c": "010",
        "d": "no",
        "e": "2024-01-01",
        "f": -0.5,
        "g": None,
        "h": True,
        "i": -7,
    }


def test_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    assert spec_of(tmp_path, b"\xef\xbb\xbf" + GOOD.encode()).model == "qwen3-32b"


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_bytes_bring_anything_but_a_usage_error(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    file = tmp_path_factory.mktemp("any") / "spec.yaml"
    file.write_bytes(raw)
    with pytest.raises(UsageError):
        load_spec(file)


YAMLISH = st.text(alphabet="ab: -[]{}&*!#|>'\"\n\t0.~%@,?", max_size=60)


@given(YAMLISH)
@settings(max_examples=300, deadline=None)
def test_no_text_brings_anything_but_a_usage_error(text: str) -> None:
    with suppress(UsageError):
        parse_document(text, "here")


@pytest.mark.parametrize("name", preset_names())
def test_presets_load(name: str) -> None:
    spec = load_spec(name)
    assert spec.description
    assert len(spec.seeds) >= 5, "fewer seeds give no interval"


# Flags.


def test_flags_lie_over_the_file(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        GOOD,
        model="other",
        schedulers=["my.py:Mine", "tao"],
        workers=[4],
        seed=7,
        seeds=2,
        assignments=[
            "sim.sampling_interval_s=1.5",
            "scheduler_settings.tao.half_life_s=1e1",
            "workloads.0.sessions=12",
            "memory.gpu_memory_utilization=0.92",
        ],
    )
    assert spec.model == "other"
    assert spec.schedulers == ("my.py:Mine", "tao")
    assert spec.workloads[0].workers == (4,)
    assert spec.workloads[0].sessions == 12
    assert spec.seeds == (7, 8)
    assert spec.sim == {"sampling_interval_s": 1.5}
    assert spec.scheduler_settings == {"tao": {"half_life_s": 10.0}}
    assert spec.memory.gpu_memory_utilization == 0.92
    assert spec.text == GOOD


def test_workload_flag_keeps_what_the_file_says_of_it(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, GOOD, workloads=["swe-bench-mini-short"])
    assert spec.workloads[0].workers == (96, 128)


def test_everything_may_come_from_flags() -> None:
    spec = load_spec(
        None, Flags(model="m", topology="t", workloads=["w"], workers=[2], schedulers=["tao"])
    )
    assert (spec.model, spec.workloads[0].name, spec.name) == ("m", "w", "run")


def test_a_flag_is_named_for_its_own_value_only(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, GOOD, workloads=["x"], workers=[2])
    with pytest.raises(UsageError, match="--workload x: odd"), spec.locating("workloads", 0):
        raise UsageError("odd", "none")
    with pytest.raises(UsageError) as caught, spec.locating("workloads"):
        raise spec.error(("workloads", 0, "workers"), "odd", "none")
    assert caught.value.message == "--workers 2: odd", "told once"


def test_what_flags_lack_is_told_as_a_flag() -> None:
    with pytest.raises(UsageError) as missing:
        load_spec("quickstart", Flags(workloads=["x"]))
    assert missing.value.remedy == "give it as --workers"
    with pytest.raises(UsageError) as caught:
        load_spec(None, Flags(model="m", workloads=["w"], workers=[2], schedulers=["tao"]))
    assert "`topology` is missing" in caught.value.message
    assert "--topology" in caught.value.remedy


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"assignments": ["foo=1"]}, "--set foo=1: unknown field `foo`"),
        ({"assignments": ["foo.bar=1"]}, "--set foo.bar=1: unknown field `foo`"),
        ({"assignments": ["model.x=1"]}, "--set model.x=1: `model` is 'qwen3-32b'"),
        ({"assignments": ["workloads.3.workers=1"]}, "it has no item `3`"),
        ({"assignments": ["workloads.0.worker=1"]}, "--set workloads.0.worker=1: unknown field"),
        ({"assignments": ["seeds=[1"]}, "--set seeds=[1: is not valid YAML"),
        ({"assignments": ["seeds=!!python/x 3"]}, "tags are not allowed"),
        ({"assignments": ["seeds="]}, "--set seeds=: `seeds` cannot be null"),
        ({"assignments": ["seeds"]}, "not of the form a.b=value"),
        ({"assignments": ["=3"]}, "not of the form a.b=value"),
        ({"assignments": ["a..b=3"]}, "not of the form a.b=value"),
        ({"workers": [0]}, "--workers 0: `workers` cannot be 0"),
        ({"seeds": 0}, "--seeds 0: 0 seeds"),
        ({"seed": -1}, "--seed -1: `seeds` cannot be -1"),
        ({"schedulers": ["tao", "tao"]}, "--scheduler tao --scheduler tao: scheduler `tao`"),
        ({"workloads": ["x"]}, "--workload x: the field `workers` of workloads.0 is missing"),
        ({"assignments": ["name=../x"]}, "--set name=../x: `name` cannot be '../x'"),
        ({"assignments": ["name=/x"]}, "it names a folder below runs/"),
        ({"assignments": ["name=.."]}, "it names a folder below runs/"),
        ({"assignments": ["seeds=1.5"]}, "`seeds` cannot be 1.5; give a count"),
        ({"assignments": ["memory.max_model_len=1"]}, "`max_model_len` cannot be 1"),
    ],
)
def test_wrong_flags_are_named(tmp_path: Path, flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        spec_of(tmp_path, GOOD, **flags)
    assert words in caught.value.message
    assert not isinstance(caught.value, SpecError), "a flag has no line"


def test_located_errors_name_the_place_of_what_they_concern(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, GOOD)
    place = r"spec.yaml, line 6, field `schedulers.1`: odd"
    with pytest.raises(SpecError, match=place), spec.locating("schedulers", 1):
        raise UsageError("odd", "even")


# Settings.


def settings_fault(tmp_path: Path, text: str) -> UsageError:
    spec = spec_of(tmp_path, GOOD + text)
    with pytest.raises(UsageError) as caught:
        settings_from(spec, ("sim",), SimSettings, spec.sim)
    return caught.value


def test_settings_take_the_place_of_defaults(tmp_path: Path) -> None:
    text = "sim:\n  sampling_interval_s: 2\n  faults: [{at_s: 1, replica: r0, kind: lost}]\n"
    spec = spec_of(tmp_path, GOOD + text)
    found = settings_from(spec, ("sim",), SimSettings, spec.sim)
    assert found.sampling_interval_s == 2.0
    assert found.faults == (Fault(1.0, "r0", "lost"),)
    assert found.planner_latency_ms == SimSettings().planner_latency_ms


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sampling_interval: 1", "line 8, field `sim.sampling_interval`: unknown field"),
        ("sampling_interval_s: '1'", "field `sim.sampling_interval_s`: `sampling_interval_s`"),
        ("agent_retries: 1.5", "must be a whole number"),
        ("agent_retries: true", "must be a whole number"),
        ("sampling_interval_s: 0", "sampling_interval_s must be at least 0.001"),
        ("faults: [{at_s: 1, replica: r0}]", "the field `kind` is missing"),
        ("faults: [{at_s: 1, replica: r0, kind: lost, x: 1}]", "unknown field `x`"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, text: str, words: str) -> None:
    assert words in settings_fault(tmp_path, f"sim:\n  {text}\n").message


def test_document_knows_where_values_stood(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(GOOD)
    document = read_document(file)
    assert document.place(("workloads", 0, "workers", 1)) == 5
    assert document.place(("workloads", 0, "nothing")) == 4
    assert document.place(("nothing",)) == 1
