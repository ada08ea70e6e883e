"""The filters and tests that a chat template may use: Jinja's own, each counted, some in bounded forms.

Left out are Jinja's filters that no chat template needs and whose cost has no simple bound (pprint, urlize,
wordwrap and the like). Knows Jinja's filters and the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from jinja2 import Environment, pass_context, pass_environment
from jinja2.filters import FILTERS, ignore_case, make_attrgetter
from jinja2.runtime import Context
from jinja2.tests import TESTS
from markupsafe import soft_str

from graphml.errors import TemplateError
from graphml.text.sandbox.budget import CURRENT, Budget, KeyCheck
from graphml.text.sandbox.instrument import CONCAT, MADE, PASS, READ, STEP
from graphml.text.sandbox.tojson import tojson
from graphml.text.sandbox.values import (
    SMALL_TEXT,
    calculate,
    check_percent_format,
    expansion,
    line_breaks,
)

Function: TypeAlias = Callable[..., Any]
Check: TypeAlias = Callable[..., None]

MOST_ROUNDS = 10_000
LONGEST_ATTRIBUTE = 200


def chat_filters() -> dict[str, Function]:
    """Return name -> filter: all that a template may use, and those of the instrumented tree."""
    listed = {name: FILTERS[name] for name in (*_PLAIN, *_PASSING_ON)} | _OWN
    filters = {
        name: _counted(function, _CHECKS.get(name), name not in _PASSING_ON, _ATTRIBUTE_AT.get(name))
        for name, function in listed.items()
    }
    return filters | {STEP: _step, PASS: _pass, MADE: _made, READ: _read, CONCAT: _concat}


def chat_tests() -> dict[str, Function]:
    """Return name -> test, all of Jinja's, counted."""
    return {name: _counted(function, made=False) for name, function in TESTS.items()}


def _counted(
    function: Any, check: Check | None = None, made: bool = True, attribute_at: int | None = None
) -> Function:
    """Return the filter or test with its operands, and with `made` its result, counted.

    attribute_at: the index of the argument after the value that may name an attribute, if any.
    """
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

    # Always takes the context: Jinja then skips its compile-time evaluation.
    @pass_context
    def counted(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = CURRENT.get()
        budget.read(value, *args, *kwargs.values())
        if attribute_at is not None:
            _check_attribute(kwargs.get("attribute", args[attribute_at : attribute_at + 1]))
        if check is not None:
            check(budget, value, *args, **kwargs)
        first = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        head = () if passed is None else (first[passed],)
        result = function(*head, value, *args, **kwargs)
        return budget.admit(result) if made else result

    return counted


# --- Filters of the instrumented tree


@pass_context
def _step(context: Context, static_text: int) -> None:
    CURRENT.get().spend(static_text)


@pass_context
def _pass(context: Context, value: Any) -> Any:
    CURRENT.get().step()
    return value


@pass_context
def _made(context: Context, value: Any) -> Any:
    return CURRENT.get().admit(value)


@pass_context
def _read(context: Context, value: Any) -> Any:
    CURRENT.get().read(value)
    return value


@pass_context
def _concat(context: Context, values: list[Any]) -> Any:
    budget = CURRENT.get()
    budget.room(sum(map(budget.weigh, values)))
    return budget.admit("".join(map(str, values)))


def _check_attribute(given: Any) -> None:
    """Refuse a path of attributes that takes longer to parse than to follow."""
    (attribute,) = given if isinstance(given, tuple) and given else (given,)
    if isinstance(attribute, str) and len(attribute) > LONGEST_ATTRIBUTE:
        raise TemplateError(
            f"attribute: wanted at most {LONGEST_ATTRIBUTE} characters, got {len(attribute):,}"
        )


# --- Checks before Jinja's own filters


def _sorting(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    length = len(value) if hasattr(value, "__len__") else 1
    budget.places(length)
    budget.labour(budget.weigh(value) * max(1, length.bit_length()))


def _listing(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    budget.places(len(value) if hasattr(value, "__len__") else 0)


def _string(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    budget.room(budget.weigh(value))


def _parting(budget: Budget, value: Any) -> None:
    # There is at least one character between two words.
    budget.places(budget.weigh(value) // 2 + 1, SMALL_TEXT)


def _parsing(budget: Budget, value: Any, default: Any = 0, base: int = 10) -> None:
    if isinstance(value, str):
        budget.labour(len(value) ** 2)  # Python itself does not always limit it


def _escaping(budget: Budget, value: Any) -> None:
    budget.room(budget.weigh(value) * 6)


def _trimming(budget: Budget, value: Any, chars: str | None = None) -> None:
    budget.room(budget.weigh(value))
    if chars is not None:
        budget.labour(budget.weigh(value) * budget.weigh(chars))


def _centring(budget: Budget, value: Any, width: int = 80) -> None:
    budget.room(budget.weigh(value) + abs(width))


def _replacing(budget: Budget, value: Any, old: Any, new: Any, count: int | None = None) -> None:
    budget.room(budget.weigh(value) + budget.weigh(old) + budget.weigh(new))
    text, old, new = str(value), str(old), str(new)
    found = text.count(old) if old else len(text) + 1
    if count is not None and count >= 0:
        found = min(found, count)
    budget.room(len(text) + found * len(new))


def _indenting(budget: Budget, value: str, width: Any = 4, first: bool = False, blank: bool = False) -> None:
    n_lines = line_breaks(value) + 1
    budget.places(n_lines, SMALL_TEXT)
    each = len(width) if isinstance(width, str) else abs(width)
    budget.room((len(value) + n_lines * (each + 1)) * expansion(value, width))


def _formatting(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    budget.room(budget.weigh(value))
    check_percent_format(budget, soft_str(value), kwargs or args)


def _rounding(budget: Budget, value: Any, precision: int = 0, method: str = "common") -> None:
    if abs(precision) > 100:
        raise TemplateError(f"round: wanted a precision of at most 100, got {precision}")


def _rows(budget: Budget, value: Any, count: int, fill_with: Any = None) -> None:
    if count > MOST_ROUNDS:
        raise TemplateError(f"batch, slice: wanted at most {MOST_ROUNDS} items, got {count}")
    _listing(budget, value)


_PLAIN = [
    "abs",
    "batch",
    "capitalize",
    "center",
    "count",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "float",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "length",
    "list",
    "lower",
    "map",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "title",
    "trim",
    "truncate",
    "upper",
]
_ATTRIBUTE_AT = {
    **dict.fromkeys(("groupby", "map", "rejectattr", "selectattr", "sum"), 0),
    **dict.fromkeys(("join", "max", "min", "unique"), 1),
    "sort": 2,
}
# These return a value that exists already.
_PASSING_ON = ["attr", "d", "default", "first", "last", "max", "min"]
_CHECKS: dict[str, Check] = {
    **dict.fromkeys(("sort", "dictsort", "groupby", "unique", "max", "min"), _sorting),
    **dict.fromkeys(("list", "map", "reverse"), _listing),
    **dict.fromkeys(("string", "lower", "upper", "capitalize", "safe"), _string),
    **dict.fromkeys(("e", "escape"), _escaping),
    **dict.fromkeys(("batch", "slice"), _rows),
    "center": _centring,
    "format": _formatting,
    "indent": _indenting,
    "int": _parsing,
    "replace": _replacing,
    "round": _rounding,
    "title": _parting,
    "trim": _trimming,
}


# --- Filters of our own


@pass_context
def _join(context: Context, value: Any, d: Any = "", attribute: str | int | None = None) -> str:
    budget = CURRENT.get()
    _listing(budget, value)
    items = list(value)
    if attribute is not None:
        items = list(map(make_attrgetter(context.environment, attribute), items))
    budget.room(sum(map(budget.weigh, items)) + budget.weigh(d) * len(items))
    return str(d).join(map(str, items))


@pass_context
def _sum(context: Context, value: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    if isinstance(start, str):
        raise TemplateError(
            "sum: wanted a number or a list to start with, got text; join puts texts together"
        )
    items = map(make_attrgetter(context.environment, attribute), value) if attribute is not None else value
    for item in items:
        start = calculate(CURRENT.get(), "+", start, item)
    return start


@pass_environment
def _unique(
    environment: Environment, value: Any, case_sensitive: bool = False, attribute: str | int | None = None
) -> Iterator[Any]:
    key_of = make_attrgetter(environment, attribute, postprocess=None if case_sensitive else ignore_case)
    seen, check = set(), KeyCheck()
    for item in value:
        key = key_of(item)
        if key not in seen:
            check.add(key)
            seen.add(key)
            yield item


_OWN: dict[str, Function] = {"join": _join, "sum": _sum, "tojson": tojson, "unique": _unique}
