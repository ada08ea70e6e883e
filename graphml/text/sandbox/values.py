"""Operators and methods of plain values, with checks before they make large values from small ones.

Templates cannot use a method that is not listed here. Knows strings, lists, mappings and numbers,
and the budget; knows nothing of Jinja's syntax.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from types import BuiltinMethodType, MethodType
from typing import Any, TypeAlias

from markupsafe import Markup

from graphml.errors import TemplateError
from graphml.text.sandbox.budget import CURRENT, VIEWS, Budget, KeyCheck, check_integer_bits

# Escaping turns a character of HTML into up to five.
ESCAPED = 6
LARGEST_FIELD = 999
LONGEST_FORMAT_KEY = 200
# Memory of a short text and its slot in a list.
SMALL_TEXT = 64
LINE_BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"

Guard: TypeAlias = Callable[..., Any]


class Method:
    """A method of a plain value, counted when it is called."""

    def __init__(self, bound: BuiltinMethodType | MethodType, guard: Guard | None) -> None:
        self._bound, self._guard = bound, guard

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method if there is room for its result; TemplateError if not."""
        budget = CURRENT.get()
        budget.read(self._bound.__self__, *args, *kwargs.values())
        if self._guard is None:
            result = self._bound(*args, **kwargs)
        else:
            result = self._guard(budget, self._bound, *args, **kwargs)
        # The values of a mapping were counted when the mapping was made.
        return result if self._bound.__name__ == "get" else budget.admit(result)


def guarded_method(bound: BuiltinMethodType | MethodType) -> Method | None:
    """Return the counted form of a bound method of a plain value, None if templates may not use it."""
    for kind, plain, guards in METHODS:
        if isinstance(bound.__self__, kind):
            name = bound.__name__
            if name in guards:
                return Method(bound, guards[name])
            return Method(bound, None) if name in plain else None
    return None


def is_plain(value: object) -> bool:
    """Whether a value is of a kind whose methods are listed here."""
    return isinstance(value, tuple(kind for kind, _, _ in METHODS))


def line_breaks(text: str) -> int:
    """Return how many line breaks, of all kinds that splitlines knows, a text has."""
    return sum(map(text.count, LINE_BREAKS))


def expansion(*values: object) -> int:
    """Return the factor by which escaping may lengthen a text made of these values."""
    return ESCAPED if any(isinstance(value, Markup) for value in values) else 1


def mapping(source: Any = (), /, **named: Any) -> dict[Any, Any]:
    """Return what `dict` returns; TemplateError for many keys of one hash."""
    if isinstance(source, dict):
        return dict(source, **named)
    budget, made, check = CURRENT.get(), dict[Any, Any](), KeyCheck()
    for pair in source:
        key, value = pair
        budget.read(key)
        if key not in made:
            check.add(key)
        made[key] = value
    return {**made, **named}


# --- Methods


def _replace(budget: Budget, bound: Any, old: str, new: str, count: int = -1) -> Any:
    text: str = bound.__self__
    found = text.count(old) if old else len(text) + 1
    if count >= 0:
        found = min(found, count)
    budget.room((len(text) + found * len(new)) * expansion(text))
    return bound(old, new, count)


def _join(budget: Budget, bound: Any, parts: Any) -> Any:
    budget.places(len(parts) if hasattr(parts, "__len__") else 0)
    listed = list(parts)
    size = sum(map(budget.weigh, listed)) + len(bound.__self__) * len(listed)
    budget.room(size * expansion(bound.__self__))
    return bound(listed)


def _widen(budget: Budget, bound: Any, width: int, *fill: str) -> Any:
    budget.room(len(bound.__self__) + operator.index(width))
    return bound(width, *fill)


def _split(budget: Budget, bound: Any, sep: str | None = None, maxsplit: int = -1) -> Any:
    text: str = bound.__self__
    if sep is not None and bound.__name__ == "rsplit":
        budget.labour(len(text) * len(sep))
    # Ask for one part more than allowed: counting the parts beforehand would mean splitting by hand.
    most = budget.free_places(SMALL_TEXT) + 1
    parts = bound(sep, most if maxsplit < 0 else min(most, maxsplit))
    budget.places(len(parts), SMALL_TEXT)
    return parts


def _splitlines(budget: Budget, bound: Any, keepends: bool = False) -> Any:
    budget.places(line_breaks(bound.__self__), SMALL_TEXT)
    return bound(keepends)


def _slow_search(budget: Budget, bound: Any, *args: Any) -> Any:
    # Searching from the right and stripping a set of characters take time by the product of both lengths.
    if args and isinstance(args[0], str):
        budget.labour(len(bound.__self__) * len(args[0]))
    return bound(*args)


_STR = frozenset(
    [
        "capitalize",
        "casefold",
        "count",
        "endswith",
        "find",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "isidentifier",
        "islower",
        "isnumeric",
        "isprintable",
        "isspace",
        "istitle",
        "isupper",
        "lower",
        "partition",
        "removeprefix",
        "removesuffix",
        "startswith",
        "swapcase",
        "title",
        "upper",
    ]
)
_STR_GUARDS: dict[str, Guard] = {
    "replace": _replace,
    "join": _join,
    "split": _split,
    "rsplit": _split,
    "splitlines": _splitlines,
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _widen),
    **dict.fromkeys(("strip", "lstrip", "rstrip", "rfind", "rindex", "rpartition"), _slow_search),
}
METHODS: tuple[tuple[type, frozenset[str], dict[str, Guard]], ...] = (
    (str, _STR, _STR_GUARDS),
    (dict, frozenset({"get", "items", "keys", "values", "copy"}), {}),
    (list, frozenset({"index", "count", "copy"}), {}),
    (tuple, frozenset({"index", "count"}), {}),
    (int, frozenset({"bit_length"}), {}),
    (float, frozenset({"is_integer"}), {}),
)


# --- Operators

_CALCULATE: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
OPERATORS = frozenset(_CALCULATE)


def calculate(budget: Budget, symbol: str, left: Any, right: Any) -> Any:
    """Return `left symbol right`; raises TemplateError before the result would be too large."""
    budget.read(left, right)
    if isinstance(left, VIEWS) or isinstance(right, VIEWS):  # Python makes sets of them
        raise TemplateError(f"the template calculates with the keys, values or items of a mapping ({symbol})")
    if symbol == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
        if isinstance(left, str):
            budget.room(expansion(left, right) * (len(left) + len(right)))
        else:
            budget.places(len(left) + len(right))
    elif symbol == "*":
        _check_product(budget, left, right)
    elif symbol == "%" and isinstance(left, str):
        check_percent_format(budget, left, right)
    elif symbol == "**" and isinstance(left, int) and isinstance(right, int):
        check_integer_bits(left.bit_length() * max(right, 0) if abs(left) > 1 else 1)
    return budget.admit(_CALCULATE[symbol](left, right))


def _check_product(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        check_integer_bits(left.bit_length() + right.bit_length())
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, (str, list, tuple)) and isinstance(times, int):
            check = budget.room if isinstance(sequence, str) else budget.places
            check(len(sequence) * max(times, 0))


_PERCENT = re.compile(
    rf"%(?:\([^()]{{0,{LONGEST_FORMAT_KEY}}}\))?[#0\- +]*(\*|[0-9]+)?(?:\.(\*|[0-9]+)?)?[hlL]?(.)", re.DOTALL
)


def check_percent_format(budget: Budget, text: str, values: Any) -> None:
    """Check that `text % values` stays within the budget: widths are limited, and so is the sum."""
    parts = list(values.values()) if isinstance(values, dict) else values
    largest = max(map(budget.weigh, parts if isinstance(parts, (list, tuple)) else [parts]), default=0)
    size = len(text)
    for field in _PERCENT.finditer(text):
        budget.step()
        if field.group(3) == "(":  # Python would continue up to the closing bracket
            raise TemplateError(
                "the template formats by a key with brackets in it, without its end, or of more than "
                f"{LONGEST_FORMAT_KEY} characters"
            )
        for width in field.group(1), field.group(2):
            check_width(width or "0")
        size += int(field.group(1) or 0) + int(field.group(2) or 0)
        size += largest * (10 if field.group(3) in "ra" else expansion(text))
    budget.room(size)


def check_width(width: str) -> None:
    """Refuse a formatted field that is wider than any text needs, or whose width is a value."""
    if not width.isdecimal() or len(width) > len(str(LARGEST_FIELD)):
        raise TemplateError(
            f"the template formats a field wider than {LARGEST_FIELD} characters ({width[:20]})"
        )
