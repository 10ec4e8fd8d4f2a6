"""Read a mapping of a YAML document field by field: unknown keys and wrong types are errors that
name file, line and field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from agentsched import UsageError
from harness.specfile import Document, ValuePath, closest

_REQUIRED: Any = object()


class Fields:
    """The mapping at `path` of a document. Call `done` last: it refuses what was not asked for.

    Raises:
        SpecError: at construction, if there is no mapping at `path`.
    """

    def __init__(self, document: Document, path: ValuePath = ()) -> None:
        self._document, self._path = document, path
        value: Any = document.data
        for key in path:
            value = value[key]
        self._data: dict[str, Any] = value if isinstance(value, dict) else {}
        self._asked: list[str] = []
        if not isinstance(value, dict):
            self._refuse(path, f"is {_shown(value)}, not a mapping", "write `field: value` lines")

    def __contains__(self, key: str) -> bool:
        return self._data.get(key) is not None

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._data)

    def text(self, key: str, default: str = _REQUIRED) -> str:
        value = self._get(key, default)
        if not isinstance(value, str) or not value.strip():
            self._refuse((*self._path, key), f"is {_shown(value)}, not text", "write a word")
        return value.strip()

    def choice(self, key: str, choices: Sequence[str], default: str = _REQUIRED) -> str:
        value = self.text(key, default)
        if value not in choices:
            near = closest(value, choices)
            hint = f"did you mean `{near}`? " if near else ""
            self._refuse(
                (*self._path, key),
                f"is `{value}`, which is not known",
                f"{hint}known: {', '.join(choices)}",
            )
        return value

    def whole(self, key: str, default: int = _REQUIRED, *, least: int = 1) -> int:
        value = self._get(key, default)
        if type(value) is not int or value < least:
            self._refuse(
                (*self._path, key),
                f"is {_shown(value)}, not a whole number of {least} or more",
                "write such a number",
            )
        return value

    def number(
        self, key: str, default: float = _REQUIRED, *, above: float = 0.0, most: float = 1e18
    ) -> float:
        """A number in (above, most]."""
        value = self._get(key, default)
        usable = type(value) in (int, float) and above < value <= most
        if not usable:
            bound = f"above {above:g}" + (f" and at most {most:g}" if most < 1e18 else "")
            self._refuse(
                (*self._path, key),
                f"is {_shown(value)}, not a number {bound}",
                "write such a number",
            )
        return float(value)

    def optional_number(self, key: str, *, above: float = 0.0, most: float = 1e18) -> float | None:
        self._asked.append(key)
        return self.number(key, above=above, most=most) if key in self else None

    def numbers(self, key: str, count: int) -> list[float]:
        """A list of `count` numbers, none negative."""
        value = self._get(key, _REQUIRED)
        if (
            not isinstance(value, list)
            or len(value) != count
            or not all(type(item) in (int, float) and item >= 0 for item in value)
        ):
            self._refuse(
                (*self._path, key),
                f"is {_shown(value)}, not {count} numbers of 0 or more",
                f"write a list of {count} numbers",
            )
        return [float(item) for item in value]

    def flag(self, key: str, default: bool = _REQUIRED) -> bool:
        value = self._get(key, default)
        if type(value) is not bool:
            self._refuse(
                (*self._path, key), f"is {_shown(value)}, not true or false", "write true or false"
            )
        return value

    def group(self, key: str) -> Fields:
        self._get(key, _REQUIRED)
        return Fields(self._document, (*self._path, key))

    def groups(self, key: str) -> list[Fields]:
        """The mappings of a list that must not be empty."""
        value = self._get(key, _REQUIRED)
        if not isinstance(value, list) or not value:
            self._refuse(
                (*self._path, key),
                f"is {_shown(value)}, not a list",
                "write `- field: value` items",
            )
        return [Fields(self._document, (*self._path, key, i)) for i in range(len(value))]

    def done(self) -> None:
        for key in self._data:
            if key not in self._asked:
                near = closest(key, self._asked)
                hint = f"did you mean `{near}`? " if near else ""
                self._refuse(
                    (*self._path, key),
                    "is not a known field",
                    f"{hint}known: {', '.join(dict.fromkeys(self._asked))}",
                )

    def error(self, key: str | None, message: str, remedy: str) -> UsageError:
        path = self._path if key is None else (*self._path, key)
        return self._document.error(path, message, remedy)

    def _get(self, key: str, default: Any) -> Any:
        self._asked.append(key)
        value = self._data.get(key)
        if value is None:
            if default is _REQUIRED:
                self._refuse(self._path, f"lacks `{key}`", f"add `{key}: ...`")
            return default
        return value

    def _refuse(self, path: ValuePath, message: str, remedy: str) -> NoReturn:
        raise self._document.error(path, message, remedy)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "an empty list" if not value else "a list"
    return "empty" if value is None else f"`{str(value)[:40]}`"
