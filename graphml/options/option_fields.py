"""Fields of a dataclass of options: each states its type, default, help, range, flags and variable once.

Knows how a value is checked against its range; nothing of any option, and nothing of a command line.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import Any, cast

from graphml.errors import UsageError
from graphml.options.argument_checks import whole_number
from graphml.settings import Setting, one_of

LARGEST, SMALLEST = 3.4028234663852886e38, 1.1754943508222875e-38
"""The ends of float32's range."""


@dataclass(frozen=True)
class Whole:
    """Whole numbers from `least`, to `most` if there is one; `unit` says of what in the error."""

    least: int
    most: int | None = None
    unit: str = ""

    def read(self, name: str, value: object) -> int:
        """Return the value as an int; UsageError for all else."""
        number = whole_number(value)
        if number is None or number < self.least:
            raise UsageError(f"{name}: wanted a whole number of at least {self.least}, got {value!r}")
        if self.most is not None and number > self.most:
            raise UsageError(f"{name}: wanted {self.least} to {self.most}{self.unit}; got {number}")
        return number

    @property
    def ends(self) -> tuple[int | None, int | None]:
        """The least and the largest number, None for no bound."""
        return self.least, self.most

    def __str__(self) -> str:
        if self.most is None:
            return f"a whole number of at least {self.least}"
        return f"a whole number from {self.least} to {self.most}{self.unit}"


@dataclass(frozen=True)
class Real:
    """Finite numbers from `least` to `most`; in float32's range, because graphml computes with them in it."""

    least: float = -LARGEST
    most: float = LARGEST

    def read(self, name: str, value: object) -> float:
        """Return the value as a float; UsageError for all else."""
        number = math.nan
        if not isinstance(value, (bool, str, bytes)) and hasattr(value, "__float__"):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                number = float(cast("float", value))
        if not self.least <= number <= self.most:
            raise UsageError(f"{name}: wanted {self}, got {value!r}")
        return number

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """The least and the largest number, None for an end of float32's range."""
        least = None if self.least in (-LARGEST, SMALLEST) else self.least
        return least, None if self.most == LARGEST else self.most

    def __str__(self) -> str:
        if self.most < LARGEST:
            return f"a number from {self.least:g} to {self.most:g}"
        if self.least == -LARGEST:
            return f"a finite number in float32's range (up to {LARGEST:.2g})"
        least = f"of at least {self.least:g}"
        if self.least == SMALLEST:
            least = f"above 0 (at least {SMALLEST:.2g})"
        return f"a finite number {least} and at most {LARGEST:.2g}"


POSITIVE = Real(SMALLEST)


@dataclass(frozen=True)
class OneOf:
    """One of some words."""

    words: tuple[str, ...]

    def read(self, name: str, value: object) -> str:
        """Return the value if it is one of the words; UsageError for all else."""
        if not isinstance(value, str) or value not in self.words:
            raise UsageError(f"{name}: wanted one of {', '.join(self.words)}; got {value!r}")
        return value

    def __str__(self) -> str:
        return one_of(*self.words).text


@dataclass(frozen=True)
class OneOfNumbered(OneOf):
    """One of some words, or its number from 0 on."""

    def read(self, name: str, value: object) -> str:
        """The word; UsageError for all else."""
        number = int(value) if isinstance(value, str) and value.isdecimal() else whole_number(value)
        if number is not None and 0 <= number < len(self.words):
            return self.words[number]
        return OneOf.read(self, name, value)


@dataclass(frozen=True)
class Checked:
    """Values that a function of (name, value) reads: it returns the value, or raises a UsageError."""

    read: Callable[[str, object], Any]


@dataclass(frozen=True)
class Option:
    """What a field says of itself besides its type and default.

    flags: its names on the command line, the long one first. variable: the environment variable that decides
    where the default is left. range: which values are allowed; None: any. metavar, shown: what the help shows
    as the value and as the default. key: the key of a file's metadata that it overrides. on_command_line: the
    type there, if it is not the field's. repeated: it may be given several times; what comes of it is a list
    of that type. parse: from the type there to the field's; write: the other way. Both can be left out where
    the range's check reads what is given.
    """

    summary: str
    flags: tuple[str, ...]
    variable: str = ""
    range: Whole | Real | OneOf | Checked | None = None
    metavar: str | None = None
    shown: str = ""
    key: str = ""
    on_command_line: Any = None
    repeated: bool = False
    parse: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None

    @property
    def text(self) -> str:
        """What the option is, with the words that it may be in place of `{words}`."""
        return self.summary.format(words=self.range)

    @property
    def help(self) -> str:
        """The same for the help of a command, with the variable."""
        more = f" {self.variable} sets the default." if self.variable else ""
        return self.text + (" May be given again." if self.repeated else "") + more


def option(default: Any, summary: str, *flags: str, hash: bool | None = None, **more: Any) -> Any:
    """A field of a dataclass of options; a default that is a type makes a value each time.

    hash: as of `dataclasses.field`. The other arguments are those of `Option`.
    """
    stated = {"option": Option(summary, flags, **more)}
    if isinstance(default, type):
        return field(default_factory=default, hash=hash, metadata=stated)
    return field(default=default, hash=hash, metadata=stated)


def no_option(default: Any) -> Any:
    """A field that no caller states and no command line has."""
    return field(default=default, metadata={"option": None})


def with_setting(setting: Setting[Any], default: Any, *flags: str, **more: Any) -> Any:
    """A field whose default an environment variable sets; it is what the setting says of itself."""
    if setting.kind.words:
        more |= {"range": OneOf(setting.kind.words), "shown": setting.default}
    return option(default, setting.text, *flags, variable=setting.name, **more)


def same(kind: Any, name: str) -> Any:
    """A field that is that of another dataclass of options."""
    (option_field,) = (option_field for option_field in fields(kind) if option_field.name == name)
    return field(default=option_field.default, metadata=option_field.metadata)


def default_of(option_field: Field[Any]) -> Any:
    """The default of a field."""
    return option_field.default if option_field.default_factory is MISSING else option_field.default_factory()


def options_of(kind: Any) -> dict[str, Option]:
    """The options of a dataclass by the name of their field."""
    return {
        option_field.name: option_field.metadata["option"]
        for option_field in fields(kind)
        if option_field.metadata.get("option") is not None
    }


def check(options: Any, by_flag: bool = False) -> None:
    """Check each value of a new value of options against its range; the default is always allowed.

    A UsageError names the option, with by_flag as the command line has it, what was wanted and what came.
    """
    for name, default, stated, read in _ranges(options.__class__):
        value = getattr(options, name)
        if value is not default:
            object.__setattr__(options, name, read(stated.flags[-1] if by_flag else name, value))


@cache
def _ranges(kind: Any) -> list[tuple[str, Any, Option, Callable[[str, object], Any]]]:
    """The name and default of each field with a range; requests make options often."""
    pairs = [(option_field, option_field.metadata.get("option")) for option_field in fields(kind)]
    return [
        (option_field.name, option_field.default, stated, stated.range.read)
        for option_field, stated in pairs
        if stated is not None and stated.range is not None
    ]
