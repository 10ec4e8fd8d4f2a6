"""Feeds what reads untrusted input with inputs that are made up, for a while.

python -m tests.fuzz.run [http] [request] [sse] [trace] [spec] [--seconds 60] [--seed 0]
    [--with auto|atheris|hypothesis] [--keep tests/fuzz/corpus]

In a checkout: readers and corpus are those of `tests/fuzz`. With atheris (coverage-guided, from the
corpus on) where it is installed, else with hypothesis. Each reader gets the seconds for itself. An
input that fails is kept in the corpus, where the tests read it again; the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

NAMES = ("http", "request", "sse", "trace", "spec")
EXAMPLES = 300
"""Of one round of hypothesis; rounds go on until the time is up."""
LONGEST = 4096
"""Bytes of an input that atheris makes."""
START_S = 150.0
"""How long atheris may take to begin and to end."""


def with_hypothesis(name: str, seconds: float, keep: Path, seed: int = 0) -> Path | None:
    """Where the smallest input that fails is kept; None: none did."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    from tests.fuzz.inputs import INPUTS
    from tests.fuzz.readers import READERS

    until, failed = time.monotonic() + seconds, list[bytes]()
    while time.monotonic() < until:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)

            def read(data: bytes) -> None:
                if time.monotonic() > until and not failed:
                    return
                try:
                    READERS[name](data, place)  # noqa: B023
                except Exception:
                    failed.append(data)
                    raise

            rules = settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                phases=(Phase.generate, Phase.target, Phase.shrink),
                suppress_health_check=list(HealthCheck),
                print_blob=False,
            )
            try:
                seeded(seed)(rules(given(INPUTS[name])(read)))()
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
                return _kept(failed[-1], name, keep)
        seed += 1
    return None


def with_atheris(name: str, seconds: float, keep: Path, seed: int = 0) -> Path | None:
    """The same by atheris, which ends its process: it runs in one of its own."""
    command = [sys.executable, "-m", "tests.fuzz.run", name, "--seconds", f"{seconds:g}"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [*command, "--seed", str(seed), "--inside", folder],
                capture_output=True,
                text=True,
                timeout=seconds + 2 * START_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{name}: atheris did not end; is the machine too busy?") from None
        # Not what was merely slow on this machine (`found-slow-unit-...`).
        found = sorted(Path(folder).glob("found-[!s]*"))
        if found:
            print(done.stderr[-3000:], file=sys.stderr)
            return _kept(found[0].read_bytes(), name, keep)
        if done.returncode:
            raise SystemExit(f"{name}: atheris ended with {done.returncode}: {done.stderr[-2000:]}")
        print(next((line for line in done.stderr.splitlines() if "Done " in line), ""))
    return None


def _inside(name: str, seconds: float, folder: Path, seed: int) -> None:
    """Let atheris make inputs until the time is up; ends the process."""
    atheris = importlib.import_module("atheris")

    with atheris.instrument_imports(
        include=["harness", "workloads", "tests.fuzz"], enable_loader_override=False
    ):
        from tests.fuzz.readers import CORPUS, READERS

    place, grown = folder / "files", folder / "grown"
    place.mkdir()
    grown.mkdir()
    arguments = [f"-max_total_time={int(seconds)}", f"-max_len={LONGEST}", f"-seed={seed + 1}"]
    arguments += [f"-artifact_prefix={folder}/found-", "-timeout=120", "-rss_limit_mb=4096"]
    atheris.Setup(
        [sys.argv[0], *arguments, str(grown), str(CORPUS / name)],
        lambda data: READERS[name](data, place),
    )
    atheris.Fuzz()


def _kept(data: bytes, name: str, keep: Path) -> Path:
    path = keep / name / f"found-{hashlib.sha256(data).hexdigest()[:12]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--with", dest="by", default="auto", help="auto, atheris or hypothesis")
    parser.add_argument("--keep", type=Path, default=Path("tests/fuzz/corpus"))
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    unknown = sorted(set(options.readers) - set(NAMES))
    if unknown or options.by not in ("auto", "atheris", "hypothesis"):
        parser.error(f"unknown: {', '.join(unknown) or options.by}")
    if options.inside is not None:
        _inside(options.readers[0], options.seconds, options.inside, options.seed)
    has_atheris = importlib.util.find_spec("atheris") is not None
    by_atheris = options.by == "atheris" or (options.by == "auto" and has_atheris)
    fuzz = with_atheris if by_atheris else with_hypothesis
    failed = 0
    for name in options.readers or NAMES:
        path = fuzz(name, options.seconds, options.keep, options.seed)
        failed += path is not None
        how = f"{options.seconds:g} s by {'atheris' if by_atheris else 'hypothesis'}"
        print(f"{name}: {'nothing failed' if path is None else f'failed on {path}'} ({how})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
