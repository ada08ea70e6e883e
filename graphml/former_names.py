"""Names of version 0.1 that are others today: using one warns and has the effect of today's.

Modules, attributes of modules and classes, arguments of builder methods, ops and their attributes in the text
of a graph. Only what the docs of 0.1 named is here. The aliases go with the version after the next.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar, cast

FORMER_NAMES = {
    "graphml.app": "graphml.cli",
    "graphml.engine": "graphml.loading",
    "graphml.engine.architecture": "graphml.loading.architecture",
    "graphml.engine.compile": "graphml.compiler.compile",
    "graphml.engine.discovery": "graphml.loading.discovery",
    "graphml.engine.executor": "graphml.runtime.executor",
    "graphml.engine.loading": "graphml.runtime.open_executor",
    "graphml.engine.pooling": "graphml.loading.pooling",
    "graphml.generate": "graphml.api",
    "graphml.generate.model": "graphml.api.model",
    "graphml.generate.sampling": "graphml.sampling",
    "graphml.generate.session": "graphml.api.session",
    "graphml.generate.tokenizer": "graphml.text.tokenizer",
    "graphml.inspect.bench": "graphml.bench",
    "graphml.inspect.bench.model_file": "graphml.bench.made_models",
    "graphml.inspect.conformance": "graphml.conformance",
    "graphml.inspect.conformance.suite": "graphml.conformance.suite",
    "graphml.inspect.conformance.support": "graphml.conformance.support",
    "graphml.inspect.draft": "graphml.authoring.draft",
    "graphml.inspect.numbers": "graphml.inspect.tolerances",
    "graphml.inspect.stages": "graphml.inspect.without_weights",
    "graphml.inspect.verify": "graphml.authoring.verify",
    "graphml.inspect.verify.record": "graphml.authoring.verify.record",
    "graphml.inspect.verify.search": "graphml.authoring.verify.search",
    "graphml.ir.wanted": "graphml.ir.argument_kinds",
}

FORMER_ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "graphml.ir.language.Builder": {
        "make": "call",
        "best_groups": "top_k_groups", "wanted": "output_rows", "wanted_rows": "select_output_rows",
    },
    "graphml.ir.ops.index": {"best_groups": "top_k_groups"},
    "graphml.ir.ops.sampling": {"draw": "sample_token", "draw_of_row": "sample_row"},
    "graphml.ir.ops.sparse": {"select_spans": "select_blocks"},
    "graphml.runtime.executor.Executor": {"gives_best": "has_top_k"},
    "graphml.runtime.load_options.LoadOptions": {"residence": "page_policy"},
    "graphml.sampling.params.SamplingParams": {"penalty_last_n": "repeat_last_n"},
    "graphml.weights.page_policy": {"Residence": "PagePolicy"},
    "graphml.weights.requantise": {"represented": "requantised"},
}  # fmt: skip
"""Module or class -> former attribute -> today's."""
FORMER_OPS: Mapping[str, str] = {
    "best_groups": "top_k_groups", "draw": "sample_token", "draw_of_row": "sample_row",
    "select_spans": "select_blocks",
}  # fmt: skip
FORMER_OP_ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "select_blocks": {"span": "selection_block"}, "selected_attention": {"span": "selection_block"},
}  # fmt: skip
"""Op -> former attribute -> today's."""
FORMER_ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "attend": {"span": "selection_block"}, "select": {"span": "selection_block"},
}  # fmt: skip
"""Method of the builder -> former argument -> today's."""
FORMER_FIELDS: Mapping[str, Mapping[str, str]] = {"SamplingParams": {"penalty_last_n": "repeat_last_n"}}
"""Dataclass -> former field -> today's, as arguments of its constructor."""

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])


def _warn(former: str, today: str, frames: int) -> None:
    warnings.warn(f"{former} is {today} now", DeprecationWarning, stacklevel=frames + 2)


def attribute_of_today(owner: str, name: str, frames: int = 2) -> str | None:
    """Today's name of a former attribute of a module or class; None if it never had one of that name."""
    today = FORMER_ATTRIBUTES[owner].get(name)
    if today is not None:
        _warn(f"{owner}.{name}", today, frames)
    return today


def attributes_of_module(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module with former attributes."""

    def get(name: str) -> Any:
        today = attribute_of_today(module, name)
        if today is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(sys.modules[module], today)

    return get


class FormerAttribute:
    """An attribute of a class under its former name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = f"{owner.__module__}.{owner.__qualname__}", name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """The attribute of today."""
        today = attribute_of_today(self._owner, self._name)
        return getattr(owner if instance is None else instance, cast(str, today))


def former_arguments(function: Function) -> Function:
    """The method of a builder, which takes arguments by their former names, too."""
    names = FORMER_ARGUMENTS[function.__name__]

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        for former in [one for one in names if one in named]:
            _warn(f"argument {former!r} of g.{function.__name__}", repr(names[former]), 1)
            named[names[former]] = named.pop(former)
        return function(*given, **named)

    return cast(Function, call)


def former_fields(owner: Class) -> Class:
    """The dataclass, whose constructor takes fields by their former names, too."""
    names, make = FORMER_FIELDS[owner.__qualname__], vars(owner)["__init__"]

    @functools.wraps(make)
    def init(self: object, *given: Any, **named: Any) -> None:
        for former in names.keys() & named.keys():
            _warn(f"argument {former!r} of {owner.__qualname__}", repr(names[former]), 1)
            named[names[former]] = named.pop(former)
        make(self, *given, **named)

    setattr(owner, "__init__", init)  # noqa: B010
    return owner


def op_of_today(name: str) -> str:
    """The name of an op as it is now."""
    today = FORMER_OPS.get(name)
    if today is not None:
        _warn(f"op {name}", today, 2)
    return today or name


def op_attributes_of_today(op: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of an op of today by the names that they have now."""
    names = FORMER_OP_ATTRIBUTES.get(op, {})
    for former in names.keys() & attributes.keys():
        _warn(f"attribute {former} of op {op}", names[former], 2)
    return {names.get(name, name): value for name, value in attributes.items()}


_OUTSIDE_IMPORTLIB = 2  # frames of the import system are not counted


class _Finder:
    """Looks for former names only; first of all finders, or the parent's path would load a second copy."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        return ModuleSpec(name, _Alias) if name in FORMER_NAMES else None  # type: ignore[arg-type]


class _Alias:
    """Puts the module of today where the import system keeps the one of that name."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """See `importlib.abc.Loader`: an ordinary one, which is replaced."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        today = FORMER_NAMES[module.__name__]
        warnings.warn(f"{module.__name__} is {today} now", DeprecationWarning, stacklevel=_OUTSIDE_IMPORTLIB)
        sys.modules[module.__name__] = importlib.import_module(today)


def install() -> None:
    """Have imports find them. A second call does nothing."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
