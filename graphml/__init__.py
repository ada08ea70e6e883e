"""graphml: language models as static op graphs that one can see, diff, time and run fast.

`graphml.load(path)` is the entry point. What is named here is imported when it is first used, so that
the import of the package itself costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graphml.errors import (
    ArchitectureError,
    ArgumentError,
    BackendError,
    ContextFullError,
    ControlTokenWarning,
    DownloadError,
    GraphError,
    GraphmlError,
    ServerError,
    ShapeError,
    TemplateError,
    TokenizerError,
    UsageError,
    WeightsError,
)

if TYPE_CHECKING:
    from graphml import sampling
    from graphml.api.batch import Batch
    from graphml.api.chat import Chat
    from graphml.api.compiling import compile
    from graphml.api.fill_gap import fill
    from graphml.api.load_model import load
    from graphml.api.model import Model
    from graphml.api.model_tokenizer import load_tokenizer
    from graphml.api.session import Session
    from graphml.api.tokens import Token
    from graphml.runtime.blocks.row_patches import PatchRows
    from graphml.sampling import SamplingParams

__version__ = "0.1.0"

__all__ = [
    "ArchitectureError",
    "ArgumentError",
    "BackendError",
    "Batch",
    "Chat",
    "ContextFullError",
    "ControlTokenWarning",
    "DownloadError",
    "GraphError",
    "GraphmlError",
    "Model",
    "PatchRows",
    "SamplingParams",
    "ServerError",
    "Session",
    "ShapeError",
    "TemplateError",
    "Token",
    "TokenizerError",
    "UsageError",
    "WeightsError",
    "compile",
    "fill",
    "load",
    "load_tokenizer",
    "sampling",
]

_LAZY = {
    "Batch": "graphml.api.batch",
    "Chat": "graphml.api.chat",
    "Model": "graphml.api.model",
    "PatchRows": "graphml.runtime.blocks.row_patches",
    "SamplingParams": "graphml.sampling",
    "Session": "graphml.api.session",
    "Token": "graphml.api.tokens",
    "compile": "graphml.api.compiling",
    "fill": "graphml.api.fill_gap",
    "load": "graphml.api.load_model",
    "load_tokenizer": "graphml.api.model_tokenizer",
}


def __getattr__(name: str) -> Any:
    if name == "sampling":
        return importlib.import_module("graphml.sampling")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
