"""YAML that is safe to read, and that remembers where each value stood.

The dialect is YAML without its surprises: `true` and `false` are the only booleans, numbers are
decimal (`1e3` is a number, `1:30` is text), dates are text, and tags are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import yaml

from agentsched import InputError, SpecError, UsageError

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_VALUES = 20_000
"""Bounds on what a hostile file can cost; real specifications stay far below all three."""

ValuePath = tuple[str | int, ...]
"""Where a value is in the document: keys and list positions from the root."""


class FlagError(UsageError):
    """A flag of the command line is wrong; the message names it."""


_STANDARD_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """With resolvers of its own, below."""


_Loader.yaml_implicit_resolvers = {}


def _resolve(kind: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(_STANDARD_TAG + kind, re.compile(pattern), list(first))


_resolve("null", r"^(?:~|null|)$", "~n")
_Loader.add_implicit_resolver(_STANDARD_TAG + "null", re.compile(r"^$"), [""])
_resolve("bool", r"^(?:true|false)$", "tf")
_resolve("int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789")
_resolve(
    "float",
    r"^[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)$",
    "-+.0123456789",
)


@dataclass(frozen=True, slots=True)
class Document:
    """A mapping, and for each value the line of the file or the flag that it came from."""

    name: str
    """The file, or what stands for it in messages."""
    data: dict[str, Any]
    places: Mapping[ValuePath, int | str]
    """A line number, or the text of a command-line flag."""
    text: str = ""
    """As read."""
    folder: Path | None = None
    """Where the file is."""

    def place(self, path: ValuePath) -> int | str | None:
        """The place of the value at `path`, or of the closest value around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return None

    def error(self, path: ValuePath, message: str, remedy: str) -> UsageError:
        """An error that names the file, line and field, or the flag, that `path` came from."""
        place = self.place(path)
        if isinstance(place, str):
            return FlagError(f"{place}: {message}", remedy)
        if not self.text:
            return UsageError(message, remedy)
        field = dotted(path) or None
        return SpecError(message, remedy, file=self.name, line=place, field=field)


def dotted(path: ValuePath) -> str:
    return ".".join(str(part) for part in path)


def read_document(path: Path) -> Document:
    """The mapping in a YAML file.

    Raises:
        SpecError: unreadable, not text, not YAML, not a mapping, a tag, a key given twice, or
            larger or deeper than a specification can be.
    """
    try:
        if path.is_dir():
            raise SpecError("is a folder, not a file", "name a YAML file", file=path)
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(
            f"cannot be read: {error.strerror or error}", "check the path", file=path
        ) from None
    if len(raw) > MAX_BYTES:
        raise SpecError(
            f"is larger than {MAX_BYTES:,} bytes", "a specification is a short YAML file", file=path
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SpecError(
            "is not UTF-8 text", "name a YAML file, not a binary one", file=path, line=line
        ) from None
    return parse_document(text, str(path), path.parent)


def parse_document(text: str, name: str, folder: Path | None = None) -> Document:
    """As `read_document`, from text."""
    root = _compose(text, name)
    if root is None:
        raise SpecError("is empty", "write at least `workloads`, as a preset does", file=name)
    if not isinstance(root, yaml.MappingNode):
        raise SpecError(
            "is not a mapping of fields to values",
            "write `field: value` lines, as a preset does",
            file=name,
            line=_line(root),
        )
    places: dict[ValuePath, int | str] = {}
    data = _Builder(name, places).build(root, ())
    return Document(name, data, places, text, folder)


def parse_value(text: str, flag: str) -> Any:
    """The value of a `--set` flag: a scalar, list or mapping in YAML.

    Raises:
        UsageError: not YAML; the message names the flag.
    """
    try:
        root = _compose(text, flag)
        return None if root is None else _Builder(flag, {}).build(root, ())
    except InputError as error:
        raise UsageError(
            f"{flag}: {error.message.partition(': ')[2]}",
            "give a YAML value, such as 4, 0.5, true, tao or [96,128]",
        ) from None


def override(document: Document, path: ValuePath, value: Any, flag: str) -> Document:
    """The document with the value at `path` replaced; missing mappings on the way are made.

    Raises:
        UsageError: the path runs through something that holds no fields, or past a list's end.
    """
    data = _replaced(document.data, path, value, flag, ())
    places = {p: place for p, place in document.places.items() if p[: len(path)] != path}
    if path[:1] not in places:
        places[path[:1]] = flag
    places[path] = flag
    return replace(document, data=data, places=places)


def _replaced(old: Any, path: ValuePath, value: Any, flag: str, walked: ValuePath) -> Any:
    if not path:
        return value
    key, rest = path[0], path[1:]
    if old is None:
        old = {}
    if isinstance(old, dict):
        name = str(key)
        return {**old, name: _replaced(old.get(name), rest, value, flag, (*walked, name))}
    if isinstance(old, list):
        if not isinstance(key, int) or not 0 <= key < len(old):
            raise UsageError(
                f"{flag}: `{dotted(walked)}` is a list of {len(old)}; it has no item `{key}`",
                f"name an item as {dotted(walked)}.0, or replace the whole list",
            )
        return [
            _replaced(item, rest, value, flag, (*walked, key)) if index == key else item
            for index, item in enumerate(old)
        ]
    raise UsageError(
        f"{flag}: `{dotted(walked)}` is {old!r}, which has no fields",
        f"set `{dotted(walked)}` itself",
    )


def _compose(text: str, name: str) -> yaml.Node | None:
    try:
        _check_shape(text, name)
        return yaml.compose(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise SpecError(
            f"is not valid YAML: {error.problem or error.context}",
            "check indentation, colons and quotes there",
            file=name,
            line=mark.line + 1 if mark is not None else None,
        ) from None
    except yaml.YAMLError as error:
        line = None
        if isinstance(error, yaml.reader.ReaderError):
            line = text.count("\n", 0, error.position) + 1
        raise SpecError(
            "holds a character that YAML does not allow",
            "name a YAML file, not a binary one",
            file=name,
            line=line,
        ) from None


def _check_shape(text: str, name: str) -> None:
    """Refuse tags and depth from the flat stream of events, before anything recurses."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            _refuse(event, name, f"is nested more than {MAX_DEPTH} deep", "flatten it")
        tag = getattr(event, "tag", None)
        if tag is not None:
            shown = tag.replace(_STANDARD_TAG, "!!")
            _refuse(
                event,
                name,
                f"has the tag `{shown}`; tags are not allowed, since they can run code",
                "write a plain value",
            )


def _refuse(event: yaml.Event, name: str, message: str, remedy: str) -> NoReturn:
    line = event.start_mark.line + 1 if event.start_mark is not None else None
    raise SpecError(message, remedy, file=name, line=line)


def _line(node: yaml.Node) -> int | None:
    return node.start_mark.line + 1 if node.start_mark is not None else None


class _Builder:
    """Turns nodes into values, noting the line of each. Aliases are expanded, and counted."""

    def __init__(self, name: str, places: dict[ValuePath, int | str]) -> None:
        self._name, self._places = name, places
        self._left = MAX_VALUES
        self._scalars = _Loader("")

    def build(self, node: yaml.Node, path: ValuePath) -> Any:
        self._left -= 1
        if self._left < 0 or len(path) > MAX_DEPTH:
            raise SpecError(
                f"holds more than {MAX_VALUES:,} values, or an anchor that contains itself",
                "write fewer anchors and aliases",
                file=self._name,
                line=_line(node),
            )
        line = _line(node)
        if line is not None:
            self._places[path] = line
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: ValuePath) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str) or key == "<<":
                self._fail(key_node, path, "has a key that is not plain text", "name one field")
            if key in built:
                first = self._places.get((*path, key))
                self._fail(
                    key_node,
                    (*path, key),
                    f"is given twice (first on line {first})",
                    "keep one of the two",
                )
            built[key] = self.build(value_node, (*path, key))
            self._places[(*path, key)] = key_node.start_mark.line + 1
        return built

    def _scalar(self, node: yaml.Node, path: ValuePath) -> Any:
        try:
            return self._scalars.construct_object(node)
        except (ValueError, yaml.YAMLError):
            self._fail(node, path, f"cannot read the value `{node.value[:40]}`", "quote it")

    def _fail(self, node: yaml.Node, path: ValuePath, message: str, remedy: str) -> NoReturn:
        raise SpecError(
            message, remedy, file=self._name, line=_line(node), field=dotted(path) or None
        )


def closest(word: str, known: Sequence[str]) -> str | None:
    """The known word that `word` was most likely meant to be."""
    from difflib import get_close_matches

    found = get_close_matches(word, known, n=1, cutoff=0.6)
    return found[0] if found else None
