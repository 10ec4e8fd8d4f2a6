"""What a process that relays streams asks of the collector of garbage and of the kernel."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import os
import platform
import resource
from contextlib import suppress
from ctypes import c_int32, c_uint32, c_uint64

SLICE_US = 100
"""The shortest that Linux grants. Our choice."""
SOCKETS = 65_536
"""Open at once: one to each caller that a gateway takes (`http_server.Limits`), one to an engine
for each of them, and room to spare. Our choice."""
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Machine -> numbers of sched_setattr and sched_getattr, which neither Python nor libc has."""
_RESET_ON_FORK = 0x01


def calm_collector() -> None:
    """Let the garbage collector look at long-lived objects rarely: each look at all of them stops
    every stream for as long as it takes."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 100)


def room_for_sockets(most: int = SOCKETS) -> None:
    """Let this process have so many files open, as far as it may, and the kernel be ready for them.

    Linux enlarges its table of a process's open files when that is full. Where the process has
    threads it then waits until no processor reads the old one, 2 to 5 ms in which every stream
    stands still (expand_fdtable in fs/file.c). The table never shrinks: once large, it stays so.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # the system may have a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    last = (most if soft == resource.RLIM_INFINITY else min(most, soft)) - 1
    with suppress(OSError), open(os.devnull, "rb") as file:
        os.close(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, last))


class _Attributes(ctypes.Structure):
    """sched_attr, as far as the first version of the call has it (linux/sched/types.h)."""

    _fields_ = (
        ("size", c_uint32),
        ("policy", c_uint32),
        ("flags", c_uint64),
        ("nice", c_int32),
        ("priority", c_uint32),
        ("runtime", c_uint64),
        ("deadline", c_uint64),
        ("period", c_uint64),
    )


def short_slices(slice_us: int = SLICE_US) -> bool:
    """Ask that the calling thread runs soon after something arrives for it.

    A gateway has a little to do, often. Where the machine is busy, Linux lets whoever runs go on
    until its slice is over before it turns to one that woke up, unless that one has the shorter
    slice; so those who need little at a time may say so (Linux 6.12 and later, no privilege needed;
    sched(7), sched_setattr(2)). It gets no more of the processor by it. Threads and processes that
    it starts have the usual slices (and nice 0, if it has less).

    Args:
        slice_us: microseconds that it runs at a time.

    Returns:
        Whether it is granted; False on other systems and where the thread has another policy.
    """
    found = _attributes(0)
    if found is None or found.policy != os.SCHED_OTHER:
        return False
    found.size = ctypes.sizeof(_Attributes)
    found.flags |= _RESET_ON_FORK
    found.runtime = slice_us * 1000
    setting, _ = _CALLS[platform.machine()]
    if ctypes.CDLL(None).syscall(setting, 0, ctypes.byref(found), 0) != 0:
        return False
    return slice_of(0) == slice_us * 1000


def slice_of(thread: int) -> int | None:
    """Nanoseconds that a thread (0: the calling one) runs at a time; None where the kernel does not
    say, 0 where it knows no such setting.

    Raises:
        ProcessLookupError: there is no such thread.
    """
    found = _attributes(thread)
    return int(found.runtime) if found is not None else None


def _attributes(thread: int) -> _Attributes | None:
    """What the kernel says of a thread; None where it does not."""
    numbers = _CALLS.get(platform.machine()) if platform.system() == "Linux" else None
    if numbers is None:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    found = _Attributes(size=ctypes.sizeof(_Attributes))
    size = c_uint32(ctypes.sizeof(_Attributes))
    if libc.syscall(numbers[1], thread, ctypes.byref(found), size, 0) == 0:
        return found
    if ctypes.get_errno() == errno.ESRCH:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    return None
