"""graphml: language models as static op graphs that one can see, diff, time and run fast.

`graphml.load(path)` is the entry point. What is named here is imported when it is first used, so that
the import of the package itself costs nothing.
"""

from __future__ import annotations

import sys as _sys
import typing as _typing
from importlib import import_module as _import_module

from graphml.errors import (
    ArchitectureError,
    ArgumentError,
    BackendError,
    BusyError,
    ContextFullError,
    ControlTokenWarning,
    DownloadError,
    GraphError,
    GraphmlError,
    ModelNotFoundError,
    NameNotFoundError,
    ServerError,
    ShapeError,
    StatesLostError,
    TemplateError,
    TokenizerError,
    UsageError,
    WeightsError,
)

if _typing.TYPE_CHECKING:
    from graphml import sampling
    from graphml.api.batch import Batch
    from graphml.api.chat import Chat
    from graphml.api.compiling import compile
    from graphml.api.engine import Engine
    from graphml.api.fill_gap import fill
    from graphml.api.inspected_model import compare, explain, perplexity, profile
    from graphml.api.load_model import load
    from graphml.api.model import Model
    from graphml.api.model_tokenizer import load_tokenizer
    from graphml.api.quantize import dequantize, quantize
    from graphml.api.quantize_plan import quantize_plan
    from graphml.api.request_handle import Handle
    from graphml.api.session import Session
    from graphml.api.token_stream import Result
    from graphml.api.tokens import Token
    from graphml.finetuning.run import finetune
    from graphml.ir.language import Builder
    from graphml.ops import op
    from graphml.runtime.blocks.row_patches import PatchRows
    from graphml.runtime.programs.load_options import LoadOptions
    from graphml.sampling import SamplingParams
    from graphml.text.tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "ArchitectureError",
    "ArgumentError",
    "BackendError",
    "Batch",
    "Builder",
    "BusyError",
    "Chat",
    "ContextFullError",
    "ControlTokenWarning",
    "DownloadError",
    "Engine",
    "GraphError",
    "GraphmlError",
    "Handle",
    "LoadOptions",
    "Model",
    "ModelNotFoundError",
    "NameNotFoundError",
    "PatchRows",
    "Result",
    "SamplingParams",
    "ServerError",
    "Session",
    "ShapeError",
    "StatesLostError",
    "TemplateError",
    "Token",
    "Tokenizer",
    "TokenizerError",
    "UsageError",
    "WeightsError",
    "compare",
    "compile",
    "dequantize",
    "explain",
    "fill",
    "finetune",
    "load",
    "load_tokenizer",
    "op",
    "perplexity",
    "profile",
    "quantize",
    "quantize_plan",
    "sampling",
    "to_torch",
]

_LAZY = {
    "Batch": "graphml.api.batch",
    "Builder": "graphml.ir.language",
    "Chat": "graphml.api.chat",
    "Engine": "graphml.api.engine",
    "Handle": "graphml.api.request_handle",
    "LoadOptions": "graphml.runtime.programs.load_options",
    "Model": "graphml.api.model",
    "PatchRows": "graphml.runtime.blocks.row_patches",
    "Result": "graphml.api.token_stream",
    "SamplingParams": "graphml.sampling",
    "Session": "graphml.api.session",
    "Token": "graphml.api.tokens",
    "Tokenizer": "graphml.text.tokenizer",
    "compare": "graphml.api.inspected_model",
    "compile": "graphml.api.compiling",
    "dequantize": "graphml.api.quantize",
    "explain": "graphml.api.inspected_model",
    "fill": "graphml.api.fill_gap",
    "finetune": "graphml.finetuning.run",
    "load": "graphml.api.load_model",
    "load_tokenizer": "graphml.api.model_tokenizer",
    "op": "graphml.ops",
    "perplexity": "graphml.api.inspected_model",
    "profile": "graphml.api.inspected_model",
    "quantize": "graphml.api.quantize",
    "quantize_plan": "graphml.api.quantize_plan",
    "to_torch": "graphml.torch_module",
}


_ROOMS = ("batch_jobs", "ir", "ops", "sampling")
"""Modules that `import graphml` alone has."""

_INSTEAD = {
    **dict.fromkeys(("GraphBuilder", "Graph", "graph"),
                    "g = graphml.Builder(): g.finish(y=node) makes a graph (docs/builder.md), which "
                    "graphml.compile(graph, backend) runs"),
    **dict.fromkeys(("float32", "float16", "int32", "F32", "F16", "I32", "dtype", "DType"),
                    "a text, as 'f32', 'f16' or 'i32', or a dtype of NumPy"),
    "run": "graphml.compile(graph, backend): its result is called with the graph's inputs",
    "Op": "graphml.op, which makes ops of one's own, or the methods of graphml.Builder()",
    **dict.fromkeys(
        (
            "Llama", "LanguageModel", "AutoModel", "AutoModelForCausalLM", "from_pretrained", "open",
            "load_model",
        ),
        "graphml.load(path)",
    ),
    "LLM": "graphml.load(path): its generate([text, ...]) answers several prompts at once, its engine() "
    "takes requests as they come",
    "AutoTokenizer": "graphml.load_tokenizer(path)", "AsyncLLMEngine": "graphml.load(path).engine()",
    "pipeline": "graphml.load(path).generate(text)", "generate": "graphml.load(path).generate(text)",
    "chat": "graphml.load(path).chat()", "embed": "graphml.load(path).embed(texts)",
    **dict.fromkeys(("OpenAI", "Client", "serve"), "`graphml serve`, to which clients connect"),
    **dict.fromkeys(("tokenize", "encode"), "graphml.load(path).encode(text)"),
    **dict.fromkeys(("detokenize", "decode"), "graphml.load(path).decode(ids)"),
    **dict.fromkeys(("pull", "download"), "graphml.load(name), which downloads once, or `graphml pull`"),
    **dict.fromkeys(("models", "list_models"), "`graphml models`"), "info": "print(graphml.load(path))",
    **dict.fromkeys(("backends", "list_backends", "devices"), "`graphml doctor`"),
    **dict.fromkeys(("set_log_level", "logging", "set_verbosity"),
                    "the variable GRAPHML_LOG=debug, or logging.getLogger('graphml').setLevel"),
    **dict.fromkeys(("bench", "benchmark"), "`graphml bench`, or graphml.profile(model)"),
    "verify": "`graphml verify`", "config": "graphml.load(path).config",
    **dict.fromkeys(("draw", "view", "show", "plot"), "graphml.load(path).viewer(), or graph.save('x.html')"),
    "stream": "graphml.load(path).stream(text)", "session": "graphml.load(path).session()",
    "engine": "graphml.load(path).engine()", "rerank": "graphml.load(path).rank(query, texts)",
    **dict.fromkeys(("logits", "capture", "viewer"), "graphml.load(path), whose methods these are"),
    "quantise": "graphml.quantize(array, type), or graphml.load(path, quant='q8')",
    "dequantise": "graphml.dequantize(blocks, type, shape)",
}  # fmt: skip
"""Names that other libraries have -> what does the same here."""


def __getattr__(name: str) -> _typing.Any:
    if name in _ROOMS:
        return _import_module(f"graphml.{name}")
    if name not in _LAZY:
        hint = f". Use {_INSTEAD[name]}" if name in _INSTEAD else ""
        # `from graphml import name` shows no other error than an ImportError.
        by_import = bool(hint) and _sys._getframe(1).f_code.co_name == "_handle_fromlist"
        error = ImportError if by_import else AttributeError
        raise error(f"module {__name__!r} has no attribute {name!r}{hint}")
    value = getattr(_import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
