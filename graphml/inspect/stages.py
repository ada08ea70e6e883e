"""The passes of a model without its weights: what dumps describe needs the header of the file only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from graphml.backend import Plan
from graphml.engine.compile import CompileOptions, prepare
from graphml.engine.executor import Executor
from graphml.inspect.document import Document, describe
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.passes.fusion import FusionLog


@dataclass(frozen=True)
class Prepared:
    """What `Compiled` says, without a program."""

    graph: Graph
    plan: Plan
    fusions: FusionLog
    snapshots: Mapping[str, Graph]
    seconds: Mapping[str, float]
    backends: Mapping[Node, str]


def prepare_model(
    executor: Executor, max_tokens: int = 1, max_outputs: int = 1, options: CompileOptions | None = None
) -> Prepared:
    """Run every pass but the last on an open model; options None: the executor's own."""
    start = time.perf_counter()
    graph = executor.build(max_tokens, max_outputs)
    build_seconds = time.perf_counter() - start
    chosen = executor.options if options is None else options
    final, plan, log, trail = prepare(graph, executor.backend, executor.device, chosen)
    seconds = {**trail.seconds, "build": build_seconds}
    owners: Mapping[Node, str] = getattr(trail, "backends", {})
    return Prepared(final, plan, log, trail.snapshots, seconds, owners)


def describe_model(
    executor: Executor, max_tokens: int = 1, max_outputs: int = 1, options: CompileOptions | None = None
) -> Document:
    """The document of an open model for steps of at most so many tokens; no weights are read."""
    prepared = prepare_model(executor, max_tokens, max_outputs, options)
    return describe(prepared, model=executor.file.path.name, backend=executor.backend, device=executor.device)
