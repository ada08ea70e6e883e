"""Metadata of a model file: typed reads by key, and a record of the keys that were never read.

Values are decoded when they are read. Knows nothing of file layouts or of the meaning of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from graphml.errors import GraphmlError, UsageError, WeightsError

INTEGER_TYPES = frozenset({"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"})
FLOAT_TYPES = frozenset({"f32", "f64"})
NUMBER_TYPES = INTEGER_TYPES | FLOAT_TYPES
MAX_REPEAT = 1 << 20  # a `length` from a hostile file must not become a huge list
PREVIEW_ELEMENTS, PREVIEW_CHARACTERS = 4, 72

T = TypeVar("T")


class Required:
    """The type of REQUIRED."""


REQUIRED = Required()
"""No default: a missing key is an error."""


@dataclass(frozen=True)
class StoredValue:
    """One value, decoded on demand.

    `type` is the type of the value or of its elements: u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool string.
    `count` is None for a scalar, else the number of elements. `read(limit)` returns the scalar, or a list
    of the first `limit` elements (all of them for None).
    """

    type: str
    count: int | None
    read: Callable[[int | None], Any]


_KINDS: Mapping[type, str] = {bool: "bool", int: "i64", float: "f64", str: "string"}


def stored(value: Any, kind: str | None = None) -> StoredValue:
    """A value that is in memory: a bool, int, float or str, or a list of one of these.

    kind: its type, or that of a list's elements; None by the value's own, of a list that is not empty.
    """
    if isinstance(value, list):
        return StoredValue(kind or _KINDS[type(value[0])], len(value), lambda limit: value[:limit])
    return StoredValue(kind or _KINDS[type(value)], None, lambda _: value)


@dataclass(frozen=True)
class ValueSummary:
    """A summary of a value without decoding all of it; `str()` is one printable line."""

    key: str
    type: str
    count: int | None
    preview: str

    def __str__(self) -> str:
        kind = self.type if self.count is None else f"{self.type}[{self.count}]"
        return f"{self.key}: {kind} = {self.preview}"


@dataclass(frozen=True)
class Override:
    """A value in place of the file's; `origin` is the option that asks for it, for errors."""

    key: str
    value: bool | int | float | str
    origin: str

    def stored(self) -> StoredValue:
        """The value in the form of a file's metadata."""
        return stored(self.value)


class Metadata(Mapping[str, Any]):
    """The metadata of one model file, read by key and type.

    Every typed read takes the key and an optional default for a missing key. A missing key without a
    default and a value of another type raise WeightsError with the file, the key, the wanted and the found
    type. `absent` maps a prefix of keys to the reason why keys of that prefix are missing, for the
    error. Some values may be overrides of the file's.
    """

    def __init__(
        self,
        path: Path,
        values: Mapping[str, StoredValue],
        absent: Mapping[str, str] | None = None,
        overrides: Sequence[Override] = (),
    ) -> None:
        self.path = path
        self._values = dict(values) | {override.key: override.stored() for override in overrides}
        self._overrides = {override.key: override for override in overrides}
        self._absent = dict(absent or {})
        self._read: set[str] = set()

    def __repr__(self) -> str:
        # Looking at values is no read of them: unread ones are told.
        shown = (
            f"{key!r}: ..." if self.is_array(key) else f"{key!r}: {stored.read(None)!r:.60}"
            for key, stored in self._values.items()
        )  # fmt: skip
        return f"Metadata({{{', '.join(shown)}}})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Any:
        """Return the value of any type: int, float, bool, str or a list of them; KeyError if missing."""
        stored = self._values[key]
        self._read.add(key)
        return stored.read(None)

    def has(self, key: str) -> bool:
        """Whether the key exists; this is not recorded as a read."""
        return key in self._values

    def is_array(self, key: str) -> bool:
        """Whether the key exists and its value is an array; this is not recorded as a read."""
        return key in self._values and self._values[key].count is not None

    def unread(self) -> list[str]:
        """The keys whose value was not read yet, in file order."""
        return [key for key in self._values if key not in self._read]

    def overridden(self, overrides: Sequence[Override]) -> Metadata:
        """The same metadata, not read yet, with other values."""
        return Metadata(self.path, self._values, self._absent, overrides)

    def unread_overrides(self) -> list[Override]:
        """The overrides whose value was not read yet."""
        return [override for key, override in self._overrides.items() if key not in self._read]

    def describe(self, key: str) -> ValueSummary:
        """Type, count and a short preview of a value; decodes a few elements, is not a read."""
        stored = self._values.get(key)
        if stored is None:
            raise self._missing(key, "any value")
        value = stored.read(None if stored.count is None else min(PREVIEW_ELEMENTS, stored.count))
        # repr() escapes control characters, so a hostile text cannot send them to a terminal.
        if stored.count is None:
            text = repr(value[: PREVIEW_CHARACTERS + 1]) if isinstance(value, str) else repr(value)
            preview = _shortened(text)
        else:
            shown = [
                _shortened(repr(element[:40] if isinstance(element, str) else element)) for element in value
            ]
            preview = "[" + ", ".join(shown + ["..."] * (stored.count > len(value))) + "]"
        return ValueSummary(key, stored.type, stored.count, preview)

    def beginning(self, key: str, limit: int) -> tuple[str, int | None, Any]:
        """Type, count and value, of an array the first `limit` elements; is not a read."""
        stored = self._values[key]
        return stored.type, stored.count, stored.read(None if stored.count is None else limit)

    def integer(self, key: str, default: int | T | Required = REQUIRED) -> int | T:
        """Return an integer of any width."""
        value: int | T = self._scalar(key, INTEGER_TYPES, "an integer", default)
        return value

    def number(self, key: str, default: float | T | Required = REQUIRED) -> float | T:
        """Return a float; an integer in the file is converted."""
        value: float | T = self._scalar(key, NUMBER_TYPES, "a number", default)
        return float(value) if isinstance(value, int) and key in self._values else value

    def boolean(self, key: str, default: bool | T | Required = REQUIRED) -> bool | T:
        """Return a truth value."""
        value: bool | T = self._scalar(key, frozenset({"bool"}), "a bool", default)
        return value

    def text(self, key: str, default: str | T | Required = REQUIRED) -> str | T:
        """Return a string; WeightsError if it is not UTF-8."""
        value: str | T = self._scalar(key, frozenset({"string"}), "a string", default)
        return value

    def integers(
        self, key: str, default: list[int] | T | Required = REQUIRED, length: int | None = None
    ) -> list[int] | T:
        """Return an array of integers.

        With `length`, an array must have that length, and a scalar is repeated: GGUF keys like
        `attention.head_count` have one value for all layers or one for each.
        """
        values: list[int] | T = self._array(key, INTEGER_TYPES, "integers", default, length)
        return values

    def numbers(
        self, key: str, default: list[float] | T | Required = REQUIRED, length: int | None = None
    ) -> list[float] | T:
        """Return an array of floats, integers converted to floats; `length` as for `integers`."""
        values: list[float] | T = self._array(key, NUMBER_TYPES, "numbers", default, length)
        if isinstance(values, list) and key in self._values and self._values[key].type in INTEGER_TYPES:
            return [float(value) for value in values]
        return values

    def booleans(
        self, key: str, default: list[bool] | T | Required = REQUIRED, length: int | None = None
    ) -> list[bool] | T:
        """Return an array of truth values; `length` as for `integers`."""
        values: list[bool] | T = self._array(key, frozenset({"bool"}), "bools", default, length)
        return values

    def texts(self, key: str, default: list[str] | T | Required = REQUIRED) -> list[str] | T:
        """Return an array of strings; WeightsError with the index of one that is not UTF-8."""
        values: list[str] | T = self._array(key, frozenset({"string"}), "strings", default, None)
        return values

    def _scalar(self, key: str, types: frozenset[str], wanted: str, default: Any) -> Any:
        stored = self._values.get(key)
        if stored is None:
            return self._default(key, wanted, default)
        if stored.count is not None or stored.type not in types:
            raise self._wrong(key, wanted, stored)
        self._read.add(key)
        return stored.read(None)

    def _array(self, key: str, types: frozenset[str], wanted: str, default: Any, length: int | None) -> Any:
        if length is not None and not 0 <= length <= MAX_REPEAT:
            raise WeightsError(
                f"{self.path}: key {key!r}: {length} values wanted, at most {MAX_REPEAT} are possible"
            )
        wanted = f"{'an array of' if length is None else length} {wanted}"
        stored = self._values.get(key)
        if stored is None:
            return self._default(key, wanted, default)
        fits = stored.count is not None if length is None else stored.count in (None, length)
        if not fits or stored.type not in types:
            raise self._wrong(key, wanted, stored)
        self._read.add(key)
        value = stored.read(None)
        return value if stored.count is not None else [value] * (length or 0)

    def _default(self, key: str, wanted: str, default: Any) -> Any:
        if isinstance(default, Required):
            raise self._missing(key, wanted)
        return default

    def _missing(self, key: str, wanted: str) -> WeightsError:
        why = "".join(f" ({reason})" for prefix, reason in self._absent.items() if key.startswith(prefix))
        return WeightsError(f"{self.path}: key {key!r}: wanted {wanted}, but the file has no such key{why}")

    def _wrong(self, key: str, wanted: str, stored: StoredValue) -> GraphmlError:
        if key in self._overrides:
            said = f"{stored.type} {self.describe(key).preview}"
            return UsageError(f"{self._overrides[key].origin}: key {key!r}: wanted {wanted}, got {said}")
        what = stored.type if stored.count is None else f"an array of {stored.count} x {stored.type}"
        return WeightsError(
            f"{self.path}: key {key!r}: wanted {wanted}, got {what} {self.describe(key).preview}"
        )


def _shortened(text: str) -> str:
    return text if len(text) <= PREVIEW_CHARACTERS else text[: PREVIEW_CHARACTERS - 3] + "..."
