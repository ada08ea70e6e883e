"""Runs the passes of a model without its weights: dumps need only the header of the file."""

from __future__ import annotations

import time

from graphml.compiler.compile import Prepared, prepare
from graphml.compiler.options import CompileOptions
from graphml.inspect.dumps.document import Document, describe
from graphml.runtime.programs.executor import Executor


def prepare_model(
    executor: Executor, max_tokens: int = 1, max_outputs: int = 1, options: CompileOptions | None = None
) -> Prepared:
    """Run every pass but the last on an open model; options None: the executor's own."""
    start = time.perf_counter()
    graph = executor.build(max_tokens, max_outputs)
    build_seconds = time.perf_counter() - start
    chosen = executor.options if options is None else options
    return prepare(graph, executor.backend, executor.device, chosen).with_seconds(build=build_seconds)


def describe_model(
    executor: Executor, max_tokens: int = 1, max_outputs: int = 1, options: CompileOptions | None = None
) -> Document:
    """The document of an open model for steps of at most so many tokens; no weights are read."""
    prepared = prepare_model(executor, max_tokens, max_outputs, options)
    return describe(prepared, model=executor.file.path.name, backend=executor.backend, device=executor.device)
