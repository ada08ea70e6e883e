"""Fields of a dataclass of options: each states its type, default, help, range, flags and variable once.

Knows how a value is checked against its range; nothing of any option, and nothing of a command line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, cast

from graphml.argument_checks import whole_number
from graphml.errors import UsageError


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


@dataclass(frozen=True)
class Real:
    """Finite numbers of at least `least`, or above it."""

    least: float
    above: bool = False

    def read(self, name: str, value: object) -> float:
        """Return the value as a float; UsageError for all else."""
        wanted = f"a finite number {'above' if self.above else 'of at least'} {self.least:g}"
        if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
            raise UsageError(f"{name}: wanted {wanted}, got {value!r}")
        try:
            number = float(cast("float", value))
        except (TypeError, ValueError, OverflowError):
            raise UsageError(f"{name}: wanted {wanted}, got {value!r}") from None
        if not math.isfinite(number) or number < self.least or (self.above and number == self.least):
            raise UsageError(f"{name}: wanted {wanted}, got {value!r}")
        return number


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
        *others, last = self.words
        return f"{', '.join(others)} or {last}" if others else last


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
    type there, if it is not the field's; parse: from that to the field's.
    """

    summary: str
    flags: tuple[str, ...]
    variable: str = ""
    range: Whole | Real | OneOf | Checked | None = None
    metavar: str | None = None
    shown: str = ""
    key: str = ""
    on_command_line: Any = None
    parse: Callable[[Any], Any] | None = None

    @property
    def text(self) -> str:
        """What the option is, with the words that it may be in place of `{words}`."""
        return self.summary.format(words=self.range)

    @property
    def help(self) -> str:
        """The same for the help of a command, with the variable."""
        return f"{self.text} {self.variable} sets the default." if self.variable else self.text


def option(default: Any, summary: str, *flags: str, **more: Any) -> Any:
    """A field of a dataclass of options; the arguments are those of `Option`."""
    return field(default=default, metadata={"option": Option(summary, flags, **more)})


def same(kind: Any, name: str) -> Any:
    """A field that is that of another dataclass of options."""
    (one,) = (one for one in fields(kind) if one.name == name)
    return field(default=one.default, metadata=one.metadata)


def options_of(kind: Any) -> dict[str, Option]:
    """The options of a dataclass by the name of their field."""
    return {one.name: one.metadata["option"] for one in fields(kind) if "option" in one.metadata}


def check(options: Any) -> None:
    """Check each value of a new value of options against its range; the default is always allowed.

    A UsageError names the option, what was wanted and what came.
    """
    for one in fields(options):
        value, stated = getattr(options, one.name), one.metadata.get("option")
        if stated is not None and stated.range is not None and not (value is None and one.default is None):
            object.__setattr__(options, one.name, stated.range.read(one.name, value))
