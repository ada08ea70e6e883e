"""`graphml.compile`: a graph or a model made into a program, with everything that the passes did to it.

Knows where graphs come from; the compiler itself is `graphml.compiler.compile`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphml.api.model import Model
from graphml.backend import no_progress
from graphml.compiler.caller_arrays import graph_weights
from graphml.compiler.compile import Compiled, compile_graph
from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.ir.builder import BaseBuilder
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.loading import fetch
from graphml.options.argument_checks import whole_number
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import choose_backend, open_executor


def compile(
    source: Graph | Model | str | os.PathLike[str],
    backend: str | None = None,
    *,
    fuse: str = "",
    keep: str | Sequence[str] = (),
    strict: bool = False,
    place: str = "",
    weights: Mapping[str, Any] | None = None,
    threads: int | None = None,
    n_tokens: int = 1,
    n_outputs: int = 1,
) -> Compiled:
    """Compile a graph, an open model or a model's path or short name.

    backend: as of `load`, "cpu" unless given; a `Model` has one already. fuse: which fusions are on: "" all
    or what GRAPHML_FUSE says, "none", "-swiglu,+linear", "none,+swiglu". keep: names of nodes, or patterns
    such as "layers.*.q", that must stay values of their own: each becomes an output `value:NAME`. strict:
    refuse what the backend has no kernel for. place: where nodes go among several backends, as of `load`.
    weights: of a graph, name -> array, tensor of PyTorch or anything with `__dlpack__`, copied where its type
    or order differs; of block formats uint8 with the last dimension in bytes. threads: of a device that is
    opened here. n_tokens, n_outputs: bounds of a model's program.

    `compiled(x=array)`, or `compiled(array)` by the order in which the inputs were made, runs a graph without
    states once and returns its outputs by name, as copies. It has
    `graph`, `snapshots` (the graph after each pass), `fusions` (applied and refused), `plan`, `seconds`
    and `program`. A device opened here closes when the program is no longer used.

    Raises a GraphmlError: UsageError for an argument or an unknown fusion or node, and those of `load`.
    """
    options = CompileOptions(fuse, (keep,) if isinstance(keep, str) else tuple(keep), strict, place)
    options.fusions()
    if isinstance(source, Graph):
        return _graph(source, backend or "cpu", weights or {}, threads, options)
    if isinstance(source, Node | BaseBuilder):
        of = source if isinstance(source, Node) else next(reversed(source.nodes), None)
        what = "node" if isinstance(source, Node) else "builder"
        raise UsageError(
            f"source: wanted a graph; got a {what}: graphml.compile(g.finish(y=NODE)), where NODE has the "
            f"wanted value{'' if of is None else f', such as %{of.name}'}"
        )
    if weights is not None:
        raise UsageError("weights: a model has its own; they belong to a graph only")
    tokens, outputs = _count("n_tokens", n_tokens), _count("n_outputs", n_outputs)
    if isinstance(source, Model):
        if backend not in (None, source.executor.backend.name):
            raise UsageError(
                f"backend: the model is open on {source.executor.backend.name!r}; got {backend!r}"
            )
        return source.executor.compiled(tokens, outputs, options)
    executor = open_executor(Path(fetch.resolve(source)), LoadOptions(backend or "cpu", threads))
    try:
        compiled = executor.compiled(tokens, outputs, options)
    except BaseException:
        executor.close()
        raise
    executor.programs.forget()  # else the program would be kept by what is to close when it goes
    weakref.finalize(compiled.program, executor.close)
    return compiled


def _graph(
    graph: Graph, backend: str, weights: Mapping[str, Any], threads: int | None, options: CompileOptions
) -> Compiled:
    stored = graph_weights(graph, weights)
    chosen = choose_backend(backend)
    device = chosen.open(threads)
    try:
        compiled = compile_graph(graph, chosen, device, stored, no_progress, options)
    except BaseException:
        device.close()
        raise
    weakref.finalize(compiled.program, device.close)
    return compiled


def _count(name: str, value: int) -> int:
    count = whole_number(value)
    if count is None or count < 1:
        raise UsageError(f"{name}: wanted a whole number of at least 1; got {value!r}")
    return count
