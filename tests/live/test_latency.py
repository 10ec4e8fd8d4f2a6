"""A gateway asks the kernel to run soon after it wakes; those that it starts do not. It has room
for its sockets before the first comes."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.live.latency import SLICE_US, SOCKETS, short_slices, slice_of
from tests.live.test_commands import free_ports, started, stop, urls

RELEASE = tuple(int(part) for part in platform.release().split(".")[:2] if part.isdigit())
needs_linux_6_12 = pytest.mark.skipif(
    platform.system() != "Linux" or RELEASE < (6, 12) or not slice_of(0),
    reason="Linux has slices since 6.12, and says so where it may",
)


def in_thread(work: object) -> None:
    """So that the process of the tests keeps the slices it has."""
    assert callable(work)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@needs_linux_6_12
def test_only_the_thread_that_asks_has_short_slices() -> None:
    """Another test may have asked in this process before, so the usual slice is a new thread's."""
    found, own = dict[str, object](), slice_of(0)
    in_thread(lambda: found.__setitem__("usual", slice_of(0)))

    def ask() -> None:
        found["granted"] = short_slices()
        found["own"] = slice_of(0)
        in_thread(lambda: found.__setitem__("thread", slice_of(0)))
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        found["child"] = slice_of(child.pid)
        child.communicate(b"\n")

    in_thread(ask)
    usual = found["usual"]
    assert usual != SLICE_US * 1000
    expected = {"granted": True, "own": SLICE_US * 1000, "thread": usual, "child": usual}
    assert found == {"usual": usual, **expected}
    assert slice_of(0) == own


@needs_linux_6_12
def test_a_policy_that_was_chosen_stays() -> None:
    found: list[object] = []

    def ask() -> None:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        found.extend([short_slices(), os.sched_getscheduler(0)])

    in_thread(ask)
    assert found == [False, os.SCHED_BATCH]


@needs_linux_6_12
def test_a_slice_that_is_no_use_is_not_granted() -> None:
    found: list[bool] = []
    in_thread(lambda: found.append(short_slices(1)))  # Linux gives no less than 100 us
    assert found == [False]


def test_a_thread_that_is_not_there() -> None:
    if slice_of(0) is None:
        pytest.skip("this system does not say")
    with pytest.raises(ProcessLookupError):
        slice_of(2**22 + 1)  # beyond the largest number that Linux gives


@contextmanager
def served(folder: Path) -> Iterator[tuple[int, int]]:
    """Process ids of an emulator and of a gateway in front of it."""
    log, engines = folder / "serve.log", folder / "emulate.log"
    port = free_ports(3)
    emulate = ("emulate", "--model", "qwen3-8b", "--topology", "1x1xh100", "--port", str(port))
    with started(engines, *emulate) as engine:
        (url,) = urls(engines, 1)[:1]
        with started(log, "serve", "--backend", url, "--port", str(port + 1)) as gateway:
            urls(log, 2)
            yield engine.pid, gateway.pid
            assert stop(gateway) == 0


@needs_linux_6_12
def test_a_served_gateway_has_short_slices(tmp_path: Path) -> None:
    with served(tmp_path) as (engine, gateway):
        assert slice_of(gateway) == SLICE_US * 1000
        assert slice_of(engine) != SLICE_US * 1000


SAYS_LIMIT_AND_TABLE = """
import resource, sys
from pathlib import Path
soft, hard = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from harness.live.latency import room_for_sockets
before = len(list(Path("/proc/self/fd").iterdir()))
room_for_sockets()
after = len(list(Path("/proc/self/fd").iterdir()))
lines = Path("/proc/self/status").read_text().splitlines()
(table,) = (int(line.split()[1]) for line in lines if line.startswith("FDSize"))
print(*resource.getrlimit(resource.RLIMIT_NOFILE), table, after - before)
"""


def room(soft: int, hard: int) -> list[int]:
    """Limits, the kernel's table and files left open, of a process that asked for room."""
    command = [sys.executable, "-c", SAYS_LIMIT_AND_TABLE, str(soft), str(hard)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


@pytest.mark.skipif(platform.system() != "Linux", reason="Linux says how large its table is")
def test_the_table_of_open_files_is_as_large_as_it_may_get() -> None:
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(allowed, SOCKETS) if allowed != resource.RLIM_INFINITY else SOCKETS
    # The soft limit goes up to the hard one; 1,000 files are a table of 1,024.
    assert room(256, 1000) == [1000, 1000, 1024, 0]
    assert room(1000, 1000) == [1000, 1000, 1024, 0]
    soft, _, table, left = room(256, most)
    assert (soft, left) == (most, 0)
    assert table >= most


@pytest.mark.skipif(platform.system() != "Linux", reason="Linux says how large its table is")
def test_a_served_gateway_has_room_for_sockets(tmp_path: Path) -> None:
    with served(tmp_path) as processes:
        for process in processes:
            soft, hard = resource.prlimit(process, resource.RLIMIT_NOFILE)
            assert soft >= min(SOCKETS, hard if hard >= 0 else SOCKETS)
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
            (table,) = (int(line.split()[1]) for line in lines if line.startswith("FDSize"))
            assert table >= min(SOCKETS, soft)
