"""Recordings that are folders of JSON files, and the texts and times in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from agentsched import TraceError
from workloads.trace import open_binary
from workloads.trace_fields import Fields

MAX_FILE_BYTES = 64 << 20
"""Longest JSON file that is read, in bytes: a file is one session, and is held whole."""


def find_files(path: Path, pattern: str) -> Iterator[Path]:
    """The file itself, or every file below a folder that fits a pattern, in order of their paths.

    Raises:
        TraceError: there is none.
    """
    if not path.is_dir():
        yield path
        return
    found = sorted(file for file in path.rglob(pattern) if file.is_file())
    if not found:
        raise TraceError(f"no {pattern} in the folder", "name the folder above", file=path)
    yield from found


def read_document(path: Path) -> Fields:
    """One JSON object, held whole.

    Raises:
        TraceError: unreadable, too long, or no JSON object; names file and line.
    """
    with open_binary(path) as stream:
        raw = stream.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise TraceError(
            f"the file is longer than {MAX_FILE_BYTES >> 20} MiB", "leave it out", file=path
        )
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise TraceError("not a text file", "name a JSON file", file=path) from None
    except json.JSONDecodeError as error:
        raise TraceError(
            f"not JSON: {error.msg}", "the file is cut off or damaged", file=path, line=error.lineno
        ) from None
    except RecursionError:
        raise TraceError("nested too deeply", "name a JSON file", file=path) from None
    if not isinstance(value, dict):
        raise TraceError("not a JSON object", "name a recorded session", file=path)
    return Fields(value, path, None)


def part(fields: Fields, name: str) -> Fields:
    """An object inside an object; empty where it is missing.

    Raises:
        TraceError: the field is something else.
    """
    value = fields.get(name)
    if value is not None and not isinstance(value, dict):
        fields.refuse(name, "not an object", "correct the file")
    return fields.sub(value or {}, f"{name}.")


def parts(fields: Fields, name: str) -> list[Fields]:
    """The objects of a list; empty where it is missing.

    Raises:
        TraceError: the field is no list of objects.
    """
    found: list[Fields] = []
    value = fields.get(name)
    for index, item in enumerate([] if value is None else fields.items(name)):
        if not isinstance(item, dict):
            fields.refuse(f"{name}[{index}]", "not an object", "correct the file")
        found.append(fields.sub(item, f"{name}[{index}]."))
    return found


def moment(fields: Fields, name: str) -> float | None:
    """A time, given in ISO 8601 or as seconds, in seconds since 1970; None where it is missing.

    Raises:
        TraceError: it is no time.
    """
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            fields.refuse(name, f"{value[:40]!r} is not a time", "use ISO 8601")
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        fields.refuse(name, "not a time", "use ISO 8601, or seconds since 1970")
    return float(value)


def text_of(content: object) -> str:
    """The text of a message's content: a string, or parts of which some have text."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return text_of(content.get("text") or content.get("content") or "")
    if isinstance(content, Sequence):
        return "".join(text_of(item) for item in content)
    return ""


def short_name(text: str, fallback: str) -> str:
    """A name that a trace can hold, made of any text."""
    kept = "".join(char if char.isprintable() else " " for char in text).strip()[:200]
    return kept or fallback


def command_name(command: str) -> str:
    """What a shell command is called in a trace: `bash:` and its program, wrappers left out."""
    for simple in re.split(r"&&|\|\||[;|\n]", command):
        for word in simple.split():
            program = word.strip("()'\"").rpartition("/")[2]
            if program in _SETTING_UP:
                break
            wrapping = program in _WRAPPERS or "=" in word or word.startswith("-")
            if program and not wrapping and not program[0].isdigit():
                return f"bash:{short_name(program, 'bash')[:60]}"
    return "bash"


_SETTING_UP = frozenset({"cd", "export", "set", "source", ".", "#"})
_WRAPPERS = frozenset({"sudo", "time", "nice", "env", "timeout", "nohup"})


def stated_sleep(command: str) -> float | None:
    """Seconds of a command that is `sleep N`, possibly before others; None where it is not."""
    match = re.match(r"\s*sleep\s+(\d+(?:\.\d+)?)\s*(?:$|[;&|\n])", command)
    return float(match.group(1)) if match and float(match.group(1)) < 1e6 else None


def session_names(root: Path, files: Iterable[Path], suffix: str) -> Iterator[tuple[Path, str]]:
    """Each file with a name for its session, made of its path below `root`."""
    for file in files:
        inside = file.relative_to(root) if root.is_dir() else Path(file.name)
        stem = inside.name.removesuffix(suffix)
        folder = inside.parent
        name = folder if folder.name == stem else folder / stem
        yield file, short_name(name.as_posix(), stem)
