"""What the gateway and the replay client cost, measured beside other routers in one run.

python -m scripts.bench_gateway [--rounds 5] [--streams 160] [--spread 0] [--peers FOLDER]
    [--thunderagent CHECKOUT [--thunderagent-python PYTHON]] [--long-prompts 20]

Two engines of known timing (`bench_stub.c`) stand behind every arm. Arms take turns in each round,
so that whatever else the machine does meets all of them. Shown: medians over rounds of what an arm
adds to the time to first token of the direct arm in the same round, of its 99th percentile, and
of its CPU time a relayed chunk (start-up left out: CPU is read before and after the load).

The arms: `direct`, `agentsched` (round-robin), and those of vllm-router, smg and litellm whose
programs are in a FOLDER (--peers may be repeated) or on PATH; `thunderagent` if a checkout of its
repository is given, with an interpreter that has fastapi, httpx and uvicorn. More with
--arm NAME=COMMAND; in COMMAND {port}, {extra} (a second free port), {url1}, {url2} and {config}
(LiteLLM's configuration for both engines) are filled in. Needs a C compiler and Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TTFT_MS, ITL_MS, TOKENS = 200, 20, 64
READY_S = 120.0
LONG_TOKENS = 100_000
LONG_START_S = 1.0
"""Until the client of the long prompts has started."""
PEERS = {
    "vllm-router": "{program} --host 127.0.0.1 --port {port} --worker-urls {url1} {url2} "
    "--policy round_robin --prometheus-port {extra}",
    "smg": "{program} launch --host 127.0.0.1 --port {port} --worker-urls {url1} {url2} "
    "--policy round_robin --prometheus-port {extra}",
    "litellm": "{program} --config {config} --host 127.0.0.1 --port {port} --num_workers 1",
}
ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it fetches its price list at each start
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    "PYTHONUNBUFFERED": "1",
}
"""Of every arm; what is not a program's own it does not look at."""


@dataclass(frozen=True, slots=True)
class Server:
    """A started program and where it listens."""

    name: str
    url: str
    process: subprocess.Popen[bytes] | None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=160)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--spread", type=float, default=0.0, help="start the streams over so many seconds"
    )
    parser.add_argument("--peers", type=Path, action="append", default=[])
    parser.add_argument("--thunderagent", type=Path, default=None, metavar="CHECKOUT")
    parser.add_argument("--thunderagent-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument(
        "--long-prompts", type=float, default=0.0, metavar="A_SECOND", help="also beside these"
    )
    parser.add_argument("--arm", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--only", default=None, help="arms to run, with commas between")
    parser.add_argument("--json", type=Path, default=None, help="also write every figure here")
    given = parser.parse_args()
    commands = {"agentsched": _own_command(), **_peer_commands(given.peers)}
    if given.thunderagent is not None:
        commands["thunderagent"] = _thunderagent(given.thunderagent, given.thunderagent_python)
    commands |= dict(text.split("=", 1) for text in given.arm)
    if given.only is not None:
        commands = {name: commands[name] for name in given.only.split(",")}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stubs = [stack.enter_context(_stub(folder)) for _ in range(2)]
        arms = [Server("direct", stubs[0].url, None)]
        for name, command in commands.items():
            arms.append(stack.enter_context(_router(name, command, stubs, folder)))
        load = [f"--streams={given.streams}", f"--turns={given.turns}", f"--spread={given.spread}"]
        rows = _rounds(arms, stubs, given.rounds, load, given.long_prompts)
    _show(rows, f"{given.streams} streams started over {given.spread:g} s")
    if given.long_prompts:
        _show_gaps(rows, given.long_prompts)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


def _own_command() -> str:
    program = shlex.quote(sys.executable)
    return (
        f"{program} -m agentsched serve --scheduler round-robin --backend {{url1}} "
        "--backend {url2} --port {port} --admin-port {extra}"
    )


def _peer_commands(folders: Sequence[Path]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, command in PEERS.items():
        places = [str(folder) for folder in folders]
        programs = [shutil.which(name, path=place) for place in places] + [shutil.which(name)]
        program = next((each for each in programs if each is not None), None)
        if program is not None:
            found[name] = command.replace("{program}", shlex.quote(program))
    return found


def _thunderagent(checkout: Path, python: str) -> str:
    """Its program, as a plain proxy: without program ids its scheduler has nothing to go by."""
    if not (checkout / "ThunderAgent" / "__main__.py").is_file():
        sys.exit(f"{checkout} is no checkout of ThunderAgent: give the folder of its repository")
    return (
        f"env PYTHONPATH={shlex.quote(str(checkout))} {shlex.quote(python)} -m ThunderAgent "
        "--host 127.0.0.1 --port {port} --backends {url1},{url2} --router default"
    )


def _litellm_config(stubs: Sequence[Server], folder: Path) -> Path:
    """Both engines as deployments of one model. JSON is YAML too."""
    models = [
        {
            "model_name": "stub",
            "litellm_params": {
                "model": "hosted_vllm/stub",
                "api_base": f"{stub.url}/v1",
                "api_key": "none",
            },
        }
        for stub in stubs
    ]
    settings = {"routing_strategy": "simple-shuffle", "num_retries": 0}
    path = folder / "litellm.yaml"
    config = {"model_list": models, "router_settings": settings}
    path.write_text(json.dumps({**config, "litellm_settings": {"telemetry": False}}))
    return path


# Programs.


@contextmanager
def _started(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a group of its own, ended with all it started."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            process_group=0,
            cwd=HERE.parent,
            env={**os.environ, **ENVIRONMENT},
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


@contextmanager
def _stub(folder: Path) -> Iterator[Server]:
    program, port = folder / "bench_stub", _free_port()
    if not program.exists():
        compiler = os.environ.get("CC", "cc")
        subprocess.run(
            [compiler, "-O2", "-o", str(program), str(HERE / "bench_stub.c")], check=True
        )
    command = [str(program), str(port), str(TTFT_MS), str(ITL_MS)]
    with _started(command, folder / f"stub-{port}.log") as process:
        server = Server("stub", f"http://127.0.0.1:{port}", process)
        _wait_ready(server, folder / f"stub-{port}.log")
        yield server


@contextmanager
def _router(name: str, command: str, stubs: list[Server], folder: Path) -> Iterator[Server]:
    port, log = _free_port(), folder / f"{name}.log"
    filled = command.format(
        port=port,
        extra=_free_port(),
        url1=stubs[0].url,
        url2=stubs[1].url,
        config=_litellm_config(stubs, folder),
    )
    with _started(shlex.split(filled), log) as process:
        server = Server(name, f"http://127.0.0.1:{port}", process)
        _wait_ready(server, log)
        yield server


def _wait_ready(server: Server, log: Path) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if server.process is not None and server.process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{server.url}/v1/models", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            pass
        time.sleep(0.2)
    sys.exit(f"{server.name} did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


# Measuring.


def _rounds(
    arms: list[Server], stubs: list[Server], rounds: int, load: list[str], long_rate: float
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number in range(-1, rounds):  # the first warms everything up and is not kept
        for arm in arms:
            row = _measure(arm, stubs, load)
            if long_rate and number >= 0:
                with _long_prompts(arm, long_rate, row["makespan_s"]):
                    beside = _measure(arm, stubs, load)
                row["gap_p99_beside_ms"] = beside["gap_p99_ms"]
            if number >= 0:
                rows.append({"round": number, "arm": arm.name, **row})
                print(f"round {number + 1} {arm.name}: {_short(row)}", file=sys.stderr)
    return rows


def _short(row: dict[str, Any]) -> str:
    return (
        f"TTFT {row['ttft_mean_ms']:.2f} ms, p99 {row['ttft_p99_ms']:.2f}, "
        f"ok {row['ok']}/{row['turns']}"
    )


def _measure(arm: Server, stubs: list[Server], load: list[str]) -> dict[str, Any]:
    for stub in stubs:
        _get(f"{stub.url}/reset")
    before = _cpu_s(arm)
    command = [sys.executable, "-m", "scripts.bench_load", arm.url]
    command += [*load, f"--tokens={TOKENS}"]
    done = subprocess.run(command, cwd=HERE.parent, check=True, capture_output=True)
    row: dict[str, Any] = json.loads(done.stdout)
    spent = _cpu_s(arm) - before
    states = [_get(f"{stub.url}/stats") for stub in stubs]
    late = max(s["first_late_us"] for s in states) / 1e3
    row["stub_late_ms"] = late
    row["ttft_error_ms"] = row["ttft_mean_ms"] - TTFT_MS - late
    row["ttft_p99_error_ms"] = row["ttft_p99_ms"] - TTFT_MS - late
    row["stub_peak"] = sum(s["peak"] for s in states)
    row["cpu_us_per_chunk"] = spent / max(1, row["tokens"]) * 1e6
    row["client_us_per_token"] = row["client_cpu_s"] / max(1, row["tokens"]) * 1e6
    return row


@contextmanager
def _long_prompts(arm: Server, rate: float, seconds: float) -> Iterator[None]:
    """Prompts of 100,000 tokens beside what runs inside."""
    count = max(1, round(rate * seconds))
    command = [sys.executable, "-m", "scripts.bench_load", arm.url, f"--streams={count}"]
    command += [f"--rate={rate}", "--turns=1", "--tokens=1", f"--prompt={LONG_TOKENS}"]
    process = subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.PIPE)
    time.sleep(LONG_START_S)
    try:
        yield
    finally:
        output, _ = process.communicate(timeout=60)
        done: dict[str, Any] = json.loads(output)
        if done["ok"] < done["turns"]:
            sys.exit(
                f"{arm.name} lost {done['turns'] - done['ok']} of {done['turns']} long prompts"
            )


def _get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _cpu_s(arm: Server) -> float:
    """CPU time of the arm's process group so far."""
    if arm.process is None:
        return 0.0
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == arm.process.pid:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def _show(rows: list[dict[str, Any]], what: str) -> None:
    by_arm: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_arm.setdefault(row["arm"], []).append(row)
    direct = by_arm["direct"]
    print(f"{what}, {len(direct)} rounds; medians over rounds")
    print(f"client alone: TTFT error {_median(direct, 'ttft_error_ms'):.2f} ms mean, ", end="")
    print(f"{_median(direct, 'ttft_p99_error_ms'):.2f} ms p99; ", end="")
    print(
        f"{_median(direct, 'client_us_per_token'):.1f} us CPU a token (start-up included); ", end=""
    )
    print(f"most in flight {_median(direct, 'stub_peak'):.0f}")
    head = ("arm", "added TTFT mean", "added p99", "CPU a chunk", "lost", "to agentsched")
    print(("{:<14}" + "{:>17}" * 5).format(*head))
    own = by_arm.get("agentsched")
    for name, arm in by_arm.items():
        if name == "direct":
            continue
        mean, p99 = _added(arm, direct, "ttft_mean_ms"), _added(arm, direct, "ttft_p99_ms")
        cpu = _median(arm, "cpu_us_per_chunk")
        lost = sum(row["turns"] - row["ok"] for row in arm)
        ratio = cpu / _median(own, "cpu_us_per_chunk") if own else float("nan")
        cells = (
            f"{mean:.2f} ms",
            f"{p99:.2f} ms",
            f"{cpu:.1f} us",
            str(lost),
            f"{ratio:.2f} x CPU",
        )
        print(("{:<14}" + "{:>17}" * 5).format(name, *cells))


def _show_gaps(rows: list[dict[str, Any]], rate: float) -> None:
    print(f"longest gap of a stream, p99, beside {rate:g} prompts of 100,000 tokens a second")
    print(("{:<14}" + "{:>17}" * 3).format("arm", "alone", "beside them", "grows by"))
    for name in dict.fromkeys(row["arm"] for row in rows):
        arm = [row for row in rows if row["arm"] == name]
        grown = statistics.median(row["gap_p99_beside_ms"] - row["gap_p99_ms"] for row in arm)
        alone, beside = _median(arm, "gap_p99_ms"), _median(arm, "gap_p99_beside_ms")
        cells = (f"{alone:.1f} ms", f"{beside:.1f} ms", f"{grown:.1f} ms")
        print(("{:<14}" + "{:>17}" * 3).format(name, *cells))


def _median(rows: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(row[key] for row in rows))


def _added(arm: list[dict[str, Any]], direct: list[dict[str, Any]], key: str) -> float:
    """Median over rounds of what the arm has more than the direct arm of the same round."""
    base = {row["round"]: row[key] for row in direct}
    return float(statistics.median(row[key] - base[row["round"]] for row in arm))


if __name__ == "__main__":
    main()
