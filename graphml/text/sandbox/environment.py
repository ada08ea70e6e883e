"""The Jinja environment in which untrusted chat templates are compiled and run.

Hugging Face's settings and helper functions on Jinja's immutable sandbox, narrowed to listed attributes, with
every operation counted. Knows nothing of messages or models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn

from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import Cycler, Namespace
from markupsafe import Markup

from graphml.errors import TemplateError
from graphml.text.sandbox.budget import CURRENT, LONGEST_MESSAGE, Budget
from graphml.text.sandbox.instrument import GenerationTag
from graphml.text.sandbox.template_filters import chat_filters, chat_tests
from graphml.text.sandbox.values import (
    OPERATORS,
    Method,
    calculate,
    check_width,
    expansion,
    guarded_method,
    is_plain,
    mapping,
)

LONGEST_DATE_FORMAT = 200

_ATTRIBUTES: tuple[tuple[type, frozenset[str]], ...] = (
    (
        LoopContext,
        frozenset(
            [
                "index",
                "index0",
                "revindex",
                "revindex0",
                "first",
                "last",
                "length",
                "depth",
                "depth0",
                "previtem",
                "nextitem",
                "cycle",
                "changed",
            ]
        ),
    ),
    (Macro, frozenset({"name", "arguments", "catch_kwargs", "catch_varargs", "caller"})),
    (Cycler, frozenset({"current", "next", "reset"})),
)


class PlainNamespace(Namespace):
    """Jinja's namespace without its values in `repr`: they may contain the namespace itself."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        super().__init__(CURRENT.get().admit(mapping(*args, **kwargs)))

    def __repr__(self) -> str:
        return "<Namespace>"


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs one model's chat template; use it inside `CURRENT.set(budget)`.

    now: returns the time for strftime_now.
    """

    intercepted_binops = OPERATORS

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            # Folding constants would run a template's arithmetic while it is compiled.
            optimized=False,
            finalize=_finalize,
            extensions=[loopcontrols, GenerationTag],
        )
        self.filters.clear()
        self.filters.update(chat_filters())
        self.tests.clear()
        self.tests.update(chat_tests())
        del self.globals["lipsum"]
        self.globals |= {
            "cycler": _cycler,
            "dict": mapping,
            "namespace": PlainNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": partial(_strftime_now, now),
        }

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may read this attribute: only listed ones."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if isinstance(obj, Namespace):
            return True
        if is_plain(obj):
            fields: tuple[str, ...] = getattr(type(obj), "_fields", ())  # of groupby's results
            return attr in fields or self._counted_method(value) is not None
        return any(isinstance(obj, kind) and attr in names for kind, names in _ATTRIBUTES)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuse an attribute at once: an undefined value would only print nothing."""
        raise SecurityError(f"attribute {attribute!r} of a {type(obj).__name__} is out of a template's reach")

    def wrap_str_format(self, value: Any) -> None:
        """Return None: str.format becomes a counted method like all others."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `obj.attribute`; methods of plain values are counted."""
        value = super().getattr(obj, attribute)
        return self._counted_method(value) or value

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return `obj[argument]`; methods of plain values are counted."""
        CURRENT.get().read(argument)
        value = super().getitem(obj, argument)
        return self._counted_method(value) or value

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function or method for a template, with arguments and result counted."""
        budget = CURRENT.get()
        # Jinja adds _loop_vars and _block_vars, its own bookkeeping, and removes them again below.
        budget.read(*args, *(value for name, value in kwargs.items() if not name.startswith("_")))
        result = super().call(context, obj, *args, **kwargs)
        return result if isinstance(obj, Method) else budget.admit(result)  # a method has counted it

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return `left operator right` if the budget has room for the result."""
        return calculate(CURRENT.get(), operator, left, right)

    def _counted_method(self, value: Any) -> Method | None:
        if not isinstance(value, (BuiltinMethodType, MethodType)) or not is_plain(value.__self__):
            return None
        if isinstance(value.__self__, str) and value.__name__ == "format":
            return Method(value, partial(_format, self))
        return guarded_method(value)


class _CountedFields:
    """Counts the fields of str.format; a mixin for the sandbox's formatters."""

    def parse(self, format_string: str) -> Iterator[Any]:
        for field in super().parse(format_string):  # type: ignore[misc]  # the formatter behind has it
            CURRENT.get().step()
            yield field

    def convert_field(self, value: Any, conversion: Any) -> Any:
        budget = CURRENT.get()
        budget.room(budget.weigh(value) * 10)
        return super().convert_field(value, conversion)  # type: ignore[misc]

    def format_field(self, value: Any, format_spec: str) -> Any:
        budget = CURRENT.get()
        budget.room(budget.weigh(value) * expansion(value))
        if len(format_spec) > 100:
            raise TemplateError("the template formats a field with more than 100 characters of instructions")
        for width in re.findall(r"\d+", format_spec):  # of any script, as Python reads them
            check_width(width)
        text = super().format_field(value, format_spec)  # type: ignore[misc]
        budget.spend(len(text))
        return text


class _Formatter(_CountedFields, SandboxedFormatter):
    pass


class _EscapeFormatter(_CountedFields, SandboxedEscapeFormatter):
    pass


def _format(environment: ChatEnvironment, budget: Budget, bound: Any, *args: Any, **kwargs: Any) -> str:
    text: str = bound.__self__
    if isinstance(text, Markup):
        return Markup(_EscapeFormatter(environment, escape=text.escape).vformat(text, args, kwargs))
    return _Formatter(environment).vformat(text, args, kwargs)


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    budget = CURRENT.get()
    budget.spend(budget.weigh(value))
    return value


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message)[:LONGEST_MESSAGE])


def _cycler(*items: Any) -> Cycler:
    CURRENT.get().admit(items)
    return Cycler(*items)


def _strftime_now(now: Callable[[], datetime], date_format: str) -> str:
    if not isinstance(date_format, str) or len(date_format) > LONGEST_DATE_FORMAT:
        raise TemplateError(f"strftime_now: wanted a format of at most {LONGEST_DATE_FORMAT} characters")
    return now().strftime(date_format)
