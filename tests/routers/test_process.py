"""Starting, failing and ending, with programs that do what real routers do not do on demand."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.live.http_client import HttpClient
from harness.live.routers import RouterError, find_router
from tests.live.rig import chat, post, run
from tests.routers.rig import alive, emulated, fake_program

ANSWERS = """
import http.server, json, os, subprocess, sys, time
given = dict(zip(sys.argv, sys.argv[1:]))
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        workers = [{"url": word, "is_healthy": True} for word in sys.argv if word[:4] == "http"]
        self.answer(json.dumps({"workers": workers}).encode())
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.answer(json.dumps(dict(self.headers)).encode())
        if "die" in self.headers.get("x-session-id", ""):
            print("it is all too much", flush=True)
            os._exit(7)
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", int(given["--port"])), Handler).serve_forever()
"""


def failing_start(tmp_path: Path, script: str, ready_s: float = 20.0) -> RouterError:
    program = fake_program(tmp_path, "vllm-router", script)
    caught: list[RouterError] = []

    async def test() -> None:
        async with emulated(1) as replicas:
            settings = {"program": str(program), "ready_s": ready_s}
            front = find_router("vllm-router", settings, tmp_path)
            with pytest.raises(RouterError) as error:
                await front.start(replicas)
            caught.append(error.value)

    run(test)
    return caught[0]


def test_a_start_that_fails_shows_the_end_of_the_log(tmp_path: Path) -> None:
    script = "for i in range(40): print(f'line {i}.')\nimport no_such_module"
    error = failing_start(tmp_path, script)
    assert "vllm-router ended before it was ready" in error.message
    assert "No module named 'no_such_module'" in error.message
    assert "line 39." in error.message
    assert "line 20." not in error.message
    assert "in an environment of its own" in error.remedy


def test_a_router_that_is_never_ready_is_given_up_and_ended(tmp_path: Path) -> None:
    script = "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(60)"
    error = failing_start(tmp_path, script, ready_s=1.0)
    assert "was not ready after 1 s" in error.message
    log = (tmp_path / "vllm-router.log").read_text()
    assert not alive(int(log.split()[1]))


def test_a_port_that_somebody_takes_first_is_tried_again(tmp_path: Path) -> None:
    mark = tmp_path / "tried"
    script = f"""
import pathlib, sys
mark = pathlib.Path({str(mark)!r})
if not mark.exists():
    mark.touch()
    sys.exit("OSError: [Errno 98] Address already in use")
{ANSWERS}"""
    program = fake_program(tmp_path, "vllm-router", script)

    async def test() -> None:
        async with emulated(1) as replicas:
            front = find_router("vllm-router", {"program": str(program)}, tmp_path)
            await front.start(replicas)
            await front.close()
        assert mark.exists()

    run(test)


def test_a_fixed_port_that_is_taken_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    error = failing_start(tmp_path, "import sys; sys.exit('bind: Address already in use')")
    assert "ended before it was ready" in error.message
    assert "free the port" in error.remedy


def test_a_router_that_ends_in_the_run_fails_the_front(tmp_path: Path) -> None:
    program = fake_program(tmp_path, "vllm-router", ANSWERS)

    async def test() -> None:
        async with emulated(1) as replicas:
            front = find_router("vllm-router", {"program": str(program)}, tmp_path)
            await front.start(replicas)
            client = HttpClient(front.url)
            failure = asyncio.ensure_future(front.failed())
            try:
                await post(client, "/v1/chat/completions", chat(), {"x-session-id": "die"})
                error = await failure
                got = await post(client, "/v1/chat/completions", chat())
                assert got.status == 502
            finally:
                await client.close()
                await front.close()
        assert isinstance(error, RouterError)
        assert "exit code 7" in error.message
        assert "it is all too much" in error.message
        assert front.counters()["router.broken"] == 1

    run(test)


THUNDER = """
import http.server, json, sys
given = dict(zip(sys.argv, sys.argv[1:]))
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())
    def do_GET(self):
        self.answer({"backends": given["--backends"].split(",")})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        print("asked", self.path, body.get("program_id"), flush=True)
        self.answer(body)
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", int(given["--port"])), Handler).serve_forever()
"""


def test_thunderagent_runs_from_a_checkout_and_is_told_its_programs(tmp_path: Path) -> None:
    package = tmp_path / "checkout" / "ThunderAgent"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(THUNDER)

    async def test() -> None:
        async with emulated(2) as replicas:
            front = find_router("thunderagent", {"program": str(package.parent)}, tmp_path)
            await front.start(replicas)
            assert front.order == [replica.url for replica in replicas]
            client = HttpClient(front.url)
            try:
                headers = {"x-agentsched-session": "s1"}
                await post(client, "/v1/chat/completions", chat(), headers)
                front.release("s1")
                await asyncio.sleep(0.2)
            finally:
                await client.close()
                await front.close()
        asked = [line.split()[1:] for line in front.log.read_text().splitlines()]
        assert asked == [
            ["/v1/chat/completions", "agentsched-ready"],
            ["/programs/release", "agentsched-ready"],
            ["/v1/chat/completions", "s1"],
            ["/programs/release", "s1"],
        ]

    run(test)


STUBBORN = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(120)"
child = subprocess.Popen([sys.executable, "-c", script])
print("pids", os.getpid(), child.pid, flush=True)
"""


def pids_in(log: Path) -> list[int]:
    line = next(line for line in log.read_text().splitlines() if line.startswith("pids"))
    return [int(word) for word in line.split()[1:]]


def gone_soon(pids: list[int], seconds: float = 15.0) -> bool:
    until = time.monotonic() + seconds
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(alive(pid) for pid in pids)


def test_closing_ends_what_does_not_want_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fake_program(tmp_path, "vllm-router", STUBBORN + ANSWERS)

    async def test() -> None:
        async with emulated(1) as replicas:
            front = find_router("vllm-router", {"program": str(program)}, tmp_path)
            await front.start(replicas)
            pids = pids_in(front.log)
            assert all(alive(pid) for pid in pids)
            await front.close()
            await front.close()
        assert gone_soon(pids)

    run(test)


HARNESS = """
import asyncio, sys
from pathlib import Path
from harness.live.routers import find_router
from tests.routers.rig import emulated

async def main():
    async with emulated(1) as replicas:
        front = find_router("vllm-router", {"program": sys.argv[1]}, Path(sys.argv[2]))
        await front.start(replicas)
        print("ready", flush=True)
        await asyncio.sleep(120)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_killing_the_harness_leaves_no_router(tmp_path: Path) -> None:
    program = fake_program(tmp_path, "vllm-router", STUBBORN + ANSWERS)
    root = Path(__file__).parents[2]
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(program), str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    try:
        assert harness.stdout is not None
        assert harness.stdout.readline() == b"ready\n"
        pids = pids_in(tmp_path / "vllm-router.log")
        assert all(alive(pid) for pid in pids)
    finally:
        harness.send_signal(signal.SIGKILL)
        harness.wait()
        assert harness.stdout is not None
        harness.stdout.close()
    assert gone_soon(pids)
