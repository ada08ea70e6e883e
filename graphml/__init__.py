"""graphml: language models as static op graphs that one can see, diff, time and run fast.

`graphml.load(path)` is the door. What is named here is imported when it is first used, so that the import of
the package itself costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graphml.errors import (
    ArchitectureError,
    BackendError,
    ContextFullError,
    DownloadError,
    GraphError,
    GraphmlError,
    ShapeError,
    TemplateError,
    TokenizerError,
    UsageError,
    WeightsError,
)

if TYPE_CHECKING:
    from graphml.generate.batch import Batch
    from graphml.generate.chat import Chat
    from graphml.generate.compiling import compile
    from graphml.generate.model import Model, load, load_tokenizer
    from graphml.generate.sampling import SamplingParams
    from graphml.generate.session import Session
    from graphml.generate.tokens import Token

__version__ = "0.1.0"

__all__ = [
    "ArchitectureError",
    "BackendError",
    "Batch",
    "Chat",
    "ContextFullError",
    "DownloadError",
    "GraphError",
    "GraphmlError",
    "Model",
    "SamplingParams",
    "Session",
    "ShapeError",
    "TemplateError",
    "Token",
    "TokenizerError",
    "UsageError",
    "WeightsError",
    "compile",
    "load",
    "load_tokenizer",
]

_LAZY = {
    "Batch": "graphml.generate.batch",
    "Chat": "graphml.generate.chat",
    "Model": "graphml.generate.model",
    "SamplingParams": "graphml.generate.sampling",
    "Session": "graphml.generate.session",
    "Token": "graphml.generate.tokens",
    "compile": "graphml.generate.compiling",
    "load": "graphml.generate.model",
    "load_tokenizer": "graphml.generate.model",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
