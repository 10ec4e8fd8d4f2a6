"""The run directory: who may write it, which cells are done, and how it is read back.

runs/NAME/
    spec.yaml            as given
    manifest.json        layout, label, resolved spec, versions, seeds, planned cells, ...
    cells/CELL/          see `results.writer`
    cells/CELL.partial-N what a killed or failed attempt left; never merged into anything
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Literal, Self, cast

from agentsched import NoRunError, RunDirectoryError, __version__
from results.cells import LAYOUT, CellId, canonical_json, disk, put_atomically
from results.records import Label
from results.run import Run
from results.writer import CellWriter

CellStatus = Literal["done", "failed", "partial", "missing"]

_SUMMARY: dict[str, Any] = {
    "cell": dict,
    "metrics": dict,
    "makespan_s": (int, float),
    "counters": dict,
    "facts": dict,
}
"""What a summary must hold to be worked with."""

_OURS = {".lock", "spec.yaml", "spec.yaml.tmp", "manifest.json", "manifest.json.tmp", "cells"}


@dataclass(frozen=True, slots=True)
class CellState:
    """One cell of the plan, or one found on disk."""

    cell: CellId
    status: CellStatus
    path: Path
    error: str | None = None
    """Why it failed."""
    attempts: int = 0
    """Earlier attempts that were set aside as `partial-N`."""


class RunStore:
    """A run directory, open for writing (`open`, which locks it) or for reading (`read`)."""

    def __init__(self, path: Path, manifest: dict[str, Any], lock: int | None) -> None:
        self.path, self.manifest, self._lock = path, manifest, lock

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], spec_text: str, manifest: Mapping[str, Any]
    ) -> RunStore:
        """Makes or resumes a run directory, and locks it until `close`.

        Args:
            spec_text: the specification as the user gave it.
            manifest: must hold `label`. `spec` (resolved, a mapping) decides whether an existing
                directory belongs to the same run; without it the text does. `cells` (mappings as
                `CellId.as_dict`) is the plan, by which missing cells are known.

        Raises:
            RunDirectoryError: locked, another spec, another layout, not writable, not ours.
        """
        root = Path(path)
        new = {"layout": LAYOUT, **manifest}
        label_of(new)
        with disk(root, "make the run directory"):
            root.mkdir(parents=True, exist_ok=True)
            foreign = sorted(entry.name for entry in root.iterdir() if entry.name not in _OURS)
        if foreign and not (root / "manifest.json").exists():
            raise RunDirectoryError(
                f"{root}: holds other files ({', '.join(foreign[:3])})",
                "choose an empty or new folder with `-o`",
            )
        lock = _take_lock(root)
        try:
            return cls(root, _settle(root, spec_text, new), lock)
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> RunStore:
        """Opens a run directory for reading, finished or not; takes no lock.

        Raises:
            NoRunError: there is no run.
            RunDirectoryError: it is one of another layout.
        """
        root = Path(path)
        if not (root / "manifest.json").is_file():
            raise NoRunError(
                f"{root}: no run is stored here (no manifest.json)",
                "give the folder that `agentsched run` named, e.g. runs/quickstart",
            )
        return cls(root, _read_manifest(root), None)

    @property
    def label(self) -> Label:
        return label_of(self.manifest)

    def is_done(self, cell: CellId) -> bool:
        return (self._folder(cell) / "summary.json").exists()

    def start(self, cell: CellId, clock: Callable[[], float] = monotonic) -> CellWriter:
        """Begins a cell from nothing; what stood there is set aside as `partial-N`."""
        return CellWriter(self.path, cell, self.label, clock)

    def states(self) -> list[CellState]:
        """Planned cells in the order of the plan, then others found on disk."""
        place = self.path / "manifest.json"
        planned = [_cell_id(value, place) for value in self.manifest.get("cells", ())]
        found: dict[CellId, int] = {}
        folder = self.path / "cells"
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            cell = _cell_of(entry)
            if cell is not None:
                found[cell] = found.get(cell, 0) + (entry.name != cell.name)
        extra = [cell for cell in found if cell not in set(planned)]
        return [self._state(cell, found.get(cell, 0)) for cell in [*planned, *extra]]

    def summary(self, cell: CellId) -> dict[str, Any]:
        """What `summary.json` of a done cell holds.

        Raises:
            RunDirectoryError: unreadable, or without what every summary has.
        """
        path = self._folder(cell) / "summary.json"
        summary = _read_json(path)
        for field, kind in _SUMMARY.items():
            if not isinstance(summary.get(field), kind):
                raise _damaged(path, f"no `{field}`")
        for tag, entry in summary["metrics"].items():
            known = isinstance(entry, dict) and {"value", "n"} <= entry.keys()
            if not known or not isinstance(entry["value"], (int, float, type(None))):
                raise _damaged(path, f"metric `{tag}`")
        return summary

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _folder(self, cell: CellId) -> Path:
        return self.path / "cells" / cell.name

    def _state(self, cell: CellId, attempts: int) -> CellState:
        path = self._folder(cell)
        if (path / "summary.json").exists():
            return CellState(cell, "done", path, None, attempts)
        if (path / "error.json").exists():
            what = _read_json(path / "error.json")
            said = f"{what.get('error', 'failed')}: {what.get('message', 'it does not say why')}"
            return CellState(cell, "failed", path, said, attempts)
        return CellState(cell, "partial" if path.exists() else "missing", path, None, attempts)


def load_run(path: str | os.PathLike[str]) -> Run:
    """Reads a run directory, finished or not, into pandas tables.

    Raises:
        RunDirectoryError: there is no run, one of another layout, or a damaged file.
    """
    store = RunStore.read(path)
    states = store.states()
    summaries = {s.cell: store.summary(s.cell) for s in states if s.status == "done"}
    return Run(
        path=store.path,
        manifest=store.manifest,
        label=store.label,
        states=tuple(states),
        summaries=summaries,
    )


def label_of(manifest: Mapping[str, Any]) -> Label:
    label = manifest.get("label")
    if label not in ("simulated", "emulated", "measured", "published", "external"):
        raise ValueError(f"a manifest needs a label, not {label!r}")
    return cast(Label, label)


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """What differs between two resolved specs, as `dotted.key: old -> new`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = sorted({*old, *new}, key=str)
        return [
            line
            for key in keys
            for line in differences(
                old.get(key), new.get(key), f"{where}.{key}" if where else str(key)
            )
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [
            line
            for index, (before, after) in pairs
            for line in differences(before, after, f"{where}.{index}" if where else str(index))
        ]
    return [] if old == new else [f"{where or 'spec'}: {_short(old)} -> {_short(new)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _settle(root: Path, spec_text: str, new: dict[str, Any]) -> dict[str, Any]:
    """The manifest of the directory: the one that is there if it is of the same run, else ours."""
    if (root / "manifest.json").exists():
        old = _read_manifest(root)
        if "spec" in old and "spec" in new:
            changed = differences(old["spec"], json.loads(canonical_json(new["spec"])))
        else:
            with disk(root / "spec.yaml", "read"):
                before = (root / "spec.yaml").read_text("utf-8").splitlines()
            after = spec_text.splitlines()
            changed = [f"`{line}`" for line in before if line not in after]
            changed += [f"`{line}` (new)" for line in after if line not in before]
        if changed or old["label"] != new["label"]:
            what = changed or [f"label: {old['label']} -> {new['label']}"]
            raise RunDirectoryError(
                f"{root}: holds another run; different: {'; '.join(what[:6])}"
                + (f"; and {len(what) - 6} more" if len(what) > 6 else ""),
                "give the settings of that run to resume it, or another folder with `-o`",
            )
        return old
    with disk(root, "write the manifest"):
        directory = os.open(root, os.O_RDONLY)
        try:
            put_atomically("spec.yaml", spec_text.encode(), directory)
            put_atomically("manifest.json", canonical_json(new), directory)
        finally:
            os.close(directory)
    return _read_manifest(root)


def _take_lock(root: Path) -> int:
    with disk(root, "lock the run directory"):
        lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise RunDirectoryError(
                f"{root}: in use by another run (process {holder})",
                "wait for it to end, or choose another folder with `-o`",
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    # A forked worker must not keep the lock of a parent that was killed.
    os.register_at_fork(after_in_child=lambda: _forget(lock, root))
    return lock


def _forget(lock: int, root: Path) -> None:
    """Closes an inherited lock, if the number still stands for it."""
    try:
        if os.path.samestat(os.fstat(lock), os.stat(root / ".lock")):
            os.close(lock)
    except OSError:
        return


def _cell_of(entry: Path) -> CellId | None:
    if not (entry / "cell.json").is_file():
        return None
    return _cell_id(_read_json(entry / "cell.json"), entry / "cell.json")


def _cell_id(value: Any, path: Path) -> CellId:
    try:
        return CellId.from_dict(value)
    except (KeyError, TypeError, ValueError):
        raise _damaged(path, "names no cell") from None


def _read_manifest(root: Path) -> dict[str, Any]:
    manifest = _read_json(root / "manifest.json")
    if manifest.get("layout") != LAYOUT:
        raise _other_layout(root, manifest)
    try:
        label_of(manifest)
    except ValueError as error:
        raise _damaged(root / "manifest.json", str(error)) from None
    if not isinstance(manifest.get("cells", []), list):
        raise _damaged(root / "manifest.json", "`cells` is no list")
    workloads = manifest.get("workloads", {})
    if not isinstance(workloads, dict) or not all(isinstance(w, dict) for w in workloads.values()):
        raise _damaged(root / "manifest.json", "`workloads` does not say what they are")
    return manifest


def _other_layout(root: Path, manifest: Mapping[str, Any]) -> RunDirectoryError:
    versions = manifest.get("versions")
    writer = versions.get("agentsched") if isinstance(versions, dict) else None
    by = f" (written by agentsched {writer})" if isinstance(writer, str) else ""
    which = f"agentsched {writer}" if by else "the agentsched version that wrote it"
    return RunDirectoryError(
        f"{root}: layout {manifest.get('layout')!r}{by}, but this version ({__version__}) reads "
        f"layout {LAYOUT}",
        f"report it with {which}, or run it again into another folder with `-o`",
    )


def _read_json(path: Path) -> dict[str, Any]:
    with disk(path, "read"):
        text = path.read_bytes()
    try:
        value = json.loads(text)
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(value, dict):
        raise _damaged(path, "not an object")
    return value


def _damaged(path: Path, how: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{path}: damaged ({how})", f"remove {path.parent} and give the `agentsched run` again"
    )
