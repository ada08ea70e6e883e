"""Modules under the names that they had in version 0.1: importing one warns and gives the module of today.

Only what the docs of 0.1 named is here. The aliases go with the version after the next.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

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
}


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
