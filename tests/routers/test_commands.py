"""Command lines, configuration files, settings and refusals; nothing is started."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentsched import AgentschedError, UsageError
from harness.live.parts import ReplicaAddress
from harness.live.routers import (
    INSTALLS,
    ROUTERS,
    arm_name,
    check_router,
    describe_router,
    find_program,
    install_router,
)
from harness.live.routers.base import Launch, Router
from tests.routers.rig import fake_program

HELP = Path(__file__).parent / "help"
MIXED = (ReplicaAddress("a", "http://127.0.0.1:1"), ReplicaAddress("b", "http://127.0.0.1:2"))
SPLIT = (
    ReplicaAddress("p", "http://127.0.0.1:1", "prefill", bootstrap_port=9),
    ReplicaAddress("d", "http://127.0.0.1:2", "decode"),
)


def launch(replicas: Sequence[ReplicaAddress] = MIXED, folder: Path = Path()) -> Launch:
    return Launch(("prog",), 7, 8, replicas, "m", folder, folder)


def command(target: str, replicas: Sequence[ReplicaAddress] = MIXED, **settings: Any) -> list[str]:
    return describe_router(target, settings).command(launch(replicas))


COMMON = "--host 127.0.0.1 --port 7 --policy {} --prometheus-host 127.0.0.1 --prometheus-port 8"
WORKERS = "--worker-urls http://127.0.0.1:1 http://127.0.0.1:2"
PREFILL = "--prefill http://127.0.0.1:1 9 --decode http://127.0.0.1:2"


@pytest.mark.parametrize(
    ("target", "replicas", "settings", "expected"),
    [
        ("vllm-router", MIXED, {}, f"prog {COMMON.format('cache_aware')} {WORKERS}"),
        (
            "vllm-router:random",
            MIXED,
            {"cache_threshold": 0.5, "balance_abs_threshold": 3, "balance_rel_threshold": 2},
            f"prog {COMMON.format('random')} {WORKERS} --cache-threshold 0.5 "
            "--balance-abs-threshold 3 --balance-rel-threshold 2.0",
        ),
        (
            "vllm-router:consistent_hash",
            SPLIT,
            {"prefill_policy": "cache_aware", "kv_connector": "mooncake"},
            f"prog {COMMON.format('consistent_hash')} --vllm-pd-disaggregation {PREFILL} "
            "--prefill-policy cache_aware --kv-connector mooncake",
        ),
        (
            "smg:prefix_hash",
            MIXED,
            {},
            f"prog launch {COMMON.format('prefix_hash')} {WORKERS} --shutdown-grace-period-secs 1",
        ),
        (
            "sglang-router:power_of_two",
            SPLIT,
            {"decode_policy": "random"},
            f"prog launch {COMMON.format('power_of_two')} --pd-disaggregation {PREFILL} "
            "--decode-policy random",
        ),
        (
            "thunderagent",
            MIXED,
            {"scheduler_interval": 1, "use_acting_token_decay": True},
            "prog --host 127.0.0.1 --port 7 --backends http://127.0.0.1:1,http://127.0.0.1:2 "
            "--router tr --scheduler-interval 1.0 --use-acting-token-decay",
        ),
    ],
)
def test_command_lines(
    target: str,
    replicas: Sequence[ReplicaAddress],
    settings: Mapping[str, Any],
    expected: str,
) -> None:
    assert " ".join(command(target, replicas, **settings)) == expected


def test_program_scheduling_sees_sessions_of_any_agent() -> None:
    words = command("vllm-router", program_scheduling=True)
    assert words[-3:] == [
        "--enable-program-scheduling",
        "--program-scheduling-config-json",
        '{"enable_key": "auto"}',
    ]
    router = describe_router("vllm-router", {"program_scheduling": True})
    assert arm_name(router) == "vllm-router:cache_aware+programs"


def test_kv_aware_is_told_where_events_are() -> None:
    replicas = [ReplicaAddress("a", "http://127.0.0.1:1", kv_events="tcp://127.0.0.1:5")]
    words = command("vllm-router:kv_aware", replicas, kv_event_block_size=32)
    assert words[-6:] == [
        "--kv-event-source",
        "http://127.0.0.1:1=tcp://127.0.0.1:5",
        "--kv-event-model",
        "m",
        "--kv-event-block-size",
        "32",
    ]
    with pytest.raises(UsageError, match="replica a does not publish"):
        command("vllm-router:kv_aware")


def flags_of(help_text: Path) -> set[str]:
    return {
        word.strip(",[]")
        for word in help_text.read_text().split()
        if word.strip(",[]").startswith("--")
    }


@pytest.mark.parametrize("name", ["vllm-router", "smg", "sglang-router"])
def test_every_flag_is_in_the_program_s_own_help(name: str) -> None:
    cls = ROUTERS[name]
    known = flags_of(HELP / f"{name}-{cls.version}.txt")
    events = [dataclasses.replace(r, kv_events=f"tcp://127.0.0.1:{i}") for i, r in enumerate(SPLIT)]
    numbers = {"cache_threshold": 0.5, "balance_abs_threshold": 1, "balance_rel_threshold": 2.0}
    settings: dict[str, Any] = {**numbers, "prefill_policy": "random", "decode_policy": "random"}
    if name == "vllm-router":
        settings |= {"program_scheduling": True, "kv_connector": "nixl", "kv_event_block_size": 16}
    used: set[str] = set()
    for policy in cls.policies:
        for replicas in (events, [ReplicaAddress("a", "http://a", kv_events="tcp://a:1")]):
            used |= {w for w in command(f"{name}:{policy}", replicas, **settings) if w[:2] == "--"}
    assert used <= known
    policies = (HELP / f"{name}-{cls.version}.txt").read_text().partition("--policy {")[2]
    assert set(cls.policies) == set(policies.partition("}")[0].split(","))


def test_a_module_needs_the_interpreter_that_has_it(tmp_path: Path) -> None:
    """Any python would be found; only one whose environment has Dynamo is it."""
    folder = tmp_path / "env" / "bin"
    folder.mkdir(parents=True)
    program = fake_program(folder, "python", "")
    settings = {"program": str(folder)}
    with pytest.raises(UsageError, match="router `dynamo` is not installed"):
        check_router("dynamo", settings)
    info = tmp_path / "env" / "lib" / "python3.11" / "site-packages" / "ai_dynamo-1.3.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ai-dynamo\nVersion: 1.3.1\n")
    found = find_program(describe_router("dynamo", settings))
    assert (found.program, found.version) == ((str(program),), "1.3.1")
    assert check_router("dynamo:round-robin", settings)[0] == "dynamo:round-robin"


def test_litellm_s_configuration(tmp_path: Path) -> None:
    router = describe_router("litellm:least-busy")
    words = router.command(launch(folder=tmp_path))
    assert words[1:3] == ["--config", str(tmp_path / "litellm.yaml")]
    config = yaml.safe_load((tmp_path / "litellm.yaml").read_text())
    assert [entry["model_name"] for entry in config["model_list"]] == ["m", "m"]
    bases = [entry["litellm_params"]["api_base"] for entry in config["model_list"]]
    assert bases == ["http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"]
    assert config["router_settings"]["routing_strategy"] == "least-busy"


@pytest.mark.parametrize("target", ["thunderagent", "litellm", "dynamo"])
def test_routers_without_pools_refuse_split_replicas(target: str, tmp_path: Path) -> None:
    router = describe_router(target)
    with pytest.raises(UsageError, match="cannot split turns, and replica p is for prefill alone"):
        router.command(launch(SPLIT, tmp_path))


def test_sglang_descent_needs_a_bootstrap_port() -> None:
    bare = (ReplicaAddress("p", "http://a", "prefill"), SPLIT[1])
    with pytest.raises(UsageError, match="prefill replica p has no bootstrap port"):
        command("smg", bare)
    assert "--prefill http://a --decode" in " ".join(command("vllm-router", bare))


def test_mixed_beside_split_replicas_are_refused() -> None:
    with pytest.raises(UsageError, match="a mixed, p prefill, d decode"):
        command("vllm-router", (MIXED[0], *SPLIT))


@pytest.mark.parametrize(
    ("target", "settings", "words"),
    [
        ("nginx", {}, "unknown router `nginx`"),
        ("smg:kv_aware", {}, "router `smg` has no policy `kv_aware`"),
        ("smg", {"treshold": 1}, "router `smg` has no setting `treshold`"),
        ("smg", {"cache_threshold": "much"}, "setting `cache_threshold` of router `smg` is 'much'"),
        ("smg", {"args": ["--x", 1]}, "setting `args`"),
        ("smg", {"ready_s": 0}, "ready_s must be above 0"),
        ("vllm-router", {"program_scheduling_config": {"a": 1}}, "needs program_scheduling=true"),
        ("thunderagent", {}, "needs a checkout of its repository"),
        ("thunderagent", {"program": "/nowhere"}, "/nowhere is no checkout of ThunderAgent"),
        ("dynamo", {"program": "/nowhere"}, "router `dynamo` is not installed at /nowhere"),
        ("dynamo", {"batch_tokens": 0}, "batch_tokens must be above 0"),
    ],
)
def test_refused_before_anything_is_started(
    target: str, settings: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_router(target, settings)
    assert words in caught.value.message
    assert caught.value.remedy


def test_not_installed_says_how_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as caught:
        check_router("smg", {"program": str(tmp_path)})
    assert caught.value.message == f"router `smg` is not installed at {tmp_path}"
    assert caught.value.remedy.startswith("pip install smg==1.13.0")


def test_found_in_the_environment_that_was_made_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "engines" / "litellm" / "bin"
    folder.mkdir(parents=True)
    program = fake_program(folder, "litellm", "")
    monkeypatch.setenv("AGENTSCHED_HOME", str(tmp_path))
    found = find_program(describe_router("litellm"))
    assert found.program == (str(program),)
    arm, settings = check_router("litellm")
    assert arm == "litellm:simple-shuffle"
    assert settings["ready_s"] == 120.0


def test_every_router_has_a_default_policy_and_most_an_install() -> None:
    for name, cls in ROUTERS.items():
        assert issubclass(cls, Router)
        assert cls.policies
        assert cls.source.count("/") == 1
        assert name in INSTALLS or name == "thunderagent"
    for spec in INSTALLS.values():
        assert all("==" in package for package in spec.packages)


def test_installing_makes_an_environment_with_the_pinned_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a Python that notes what it is told and makes what pip would."""
    note = tmp_path / "note"
    script = f"""import pathlib, shutil, sys
words = sys.argv[1:]
pathlib.Path({str(note)!r}).open("a").write(" ".join(words) + "\\n")
if words[1] == "venv":
    bin = pathlib.Path(words[2]) / "bin"
    bin.mkdir(parents=True)
    (bin.parent / "pyvenv.cfg").touch()
    shutil.copy(__file__, bin / "python")
else:
    (pathlib.Path(__file__).parent / "smg").touch()
"""
    python = fake_program(tmp_path, "python", script)
    monkeypatch.setenv("AGENTSCHED_HOME", str(tmp_path / "home"))
    place = tmp_path / "home" / "engines" / "smg"
    assert install_router("smg", python=str(python)) == place / "bin" / "smg"
    assert note.read_text().splitlines() == [
        f"-m venv {place}",
        "-m pip --disable-pip-version-check install smg==1.13.0",
    ]
    with pytest.raises(UsageError, match="router `thunderagent` cannot be installed"):
        install_router("thunderagent")


def test_a_failing_install_shows_what_pip_said(tmp_path: Path) -> None:
    python = fake_program(tmp_path, "python", "import sys; sys.exit('no space left')")
    with pytest.raises(AgentschedError, match="no space left"):
        install_router("smg", tmp_path / "place", python=str(python))
