"""A run of a model with every value kept: a prompt in one batch, then one token, as in use.

An observation can be saved and compared with a later one. Knows executors and graphs; nothing of what is
wanted of the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from graphml.engine.cache import PagedCache
from graphml.engine.compile import CompileOptions, prepare
from graphml.engine.executor import BLOCK_SIZE, Executor
from graphml.errors import GraphError, UsageError
from graphml.inspect import archive
from graphml.inspect.forced import Arrays, observed, run, shown
from graphml.inspect.numbers import Difference, difference
from graphml.ir import text
from graphml.ir.graph import Graph
from graphml.ir.op import Array
from graphml.passes.fusion import Applied, all_ops

FORMAT = "graphml-observation-1"


@dataclass(frozen=True)
class Step:
    """One evaluation. graph: after the last pass; plain: as built; applied: fusions between them.

    values: node -> what it computed, states as the step leaves them; arrays: what the leaves held before it.
    unwatched: how the logits of the program as it is in use differ from those of the observed one; None where
    that was not tried.
    """

    name: str
    graph: Graph
    plain: Graph
    applied: tuple[Applied, ...]
    arrays: Arrays
    values: Mapping[str, Array]
    unwatched: Difference | None = None


@dataclass(frozen=True)
class Observation:
    """All values of a run. facts: what is told of it: model, backend, fuse, kv."""

    ids: tuple[int, ...]
    steps: tuple[Step, ...]
    facts: Mapping[str, str] = field(default_factory=dict)


def observe(executor: Executor, ids: Sequence[int], options: CompileOptions | None = None) -> Observation:
    """Run all ids but the last in one batch and then the last alone, each step with all its values kept."""
    chosen = executor.options if options is None else options
    if executor.architecture.output != "logits":
        raise UsageError(
            f"observe: wanted a model with logits; {executor.architecture.name} gives embeddings: compare "
            "those of two backends by Model.embed"
        )
    if executor.encodes:
        raise UsageError(f"observe: wanted a decoder alone; {executor.architecture.name} has an encoder too")
    if not 0 < len(ids) <= executor.n_batch:
        raise UsageError(f"observe: wanted 1 to {executor.n_batch} tokens; got {len(ids)}")
    whole = np.asarray(ids, np.int32)
    pieces = [("prefill", whole[:-1]), ("decode", whole[-1:])]
    cache = PagedCache(len(ids), BLOCK_SIZE)
    states: dict[str, Array] = {}
    steps = []
    with executor.lock:
        for name, piece in pieces:
            if len(piece):
                step, states = _step(executor, name, piece, cache, states, chosen)
                steps.append(step)
        steps = [
            replace(step, unwatched=difference(logits, step.values["logits"]))
            for step, logits in zip(steps, _as_in_use(executor, pieces, chosen), strict=True)
        ]
    facts = {
        "model": str(executor.file.path), "backend": executor.backend.name, "fuse": chosen.fuse,
        "kv": executor.cache_dtype,
    }  # fmt: skip
    return Observation(tuple(int(one) for one in ids), tuple(steps), facts)


def _step(
    executor: Executor,
    name: str,
    ids: Array,
    cache: PagedCache,
    states: Mapping[str, Array],
    options: CompileOptions,
) -> tuple[Step, dict[str, Array]]:
    count = len(ids)
    built = executor.build(1 if count == 1 else executor.n_batch, 1)
    graph, _, log, trail = prepare(built, executor.backend, executor.device, options)
    positions, cells = cache.append(0, count)
    given: dict[str, Array] = {
        "tokens": ids, "positions": positions, "cells": cells, "sequences": np.zeros(count, np.int32),
        "wanted": np.array([count - 1], np.int32), "lengths": np.array(cache.lengths, np.int32),
        "block_table": cache.table[:1].astype(np.int32),
    }  # fmt: skip
    dims = {"T": count, "O": 1, "S": 1, "B": cache.table.shape[1], "C": cache.n_cells}
    if not states:
        fresh = executor.device.state(graph, dims)
        states = {leaf: fresh.array(leaf).copy() for leaf in graph.leaves("state")}
    inputs = {leaf: given[leaf].copy() for leaf in graph.leaves("input")}
    arrays = Arrays(inputs, executor.weights, states, dims)
    outputs, after = run(executor.device, observed(graph), arrays)
    kept = {node.name: outputs[node.name] for node in shown(graph)}
    kept["logits"] = outputs["logits"]
    return Step(name, graph, trail.snapshots["build"], log.applied, arrays, kept), after


def _as_in_use(executor: Executor, pieces: list[tuple[str, Array]], options: CompileOptions) -> list[Array]:
    """The logits of each step from the programs that sessions run."""
    cache = PagedCache(sum(len(piece) for _, piece in pieces), BLOCK_SIZE)
    state = executor.state(cache, options)
    return [
        executor.values({0: piece}, cache, state, options=options)["logits"].copy()
        for _, piece in pieces
        if len(piece)
    ]


def save(observation: Observation, path: Path) -> None:
    """Write all but the weights to an .npz."""
    header = {
        "format": FORMAT,
        "ids": observation.ids,
        "facts": dict(observation.facts),
        "steps": [
            {
                "name": step.name, "dims": dict(step.arrays.dims), "graph": text.write(step.graph),
                "plain": text.write(step.plain),
                "applied": [[one.fusion, one.node, list(one.covered)] for one in step.applied],
            }
            for step in observation.steps
        ],
    }  # fmt: skip
    arrays: dict[str, Array] = {}
    for step in observation.steps:
        for kind, held in (("v", step.values), ("i", step.arrays.inputs), ("s", step.arrays.states)):
            arrays |= {f"{step.name}/{kind}/{name}": array for name, array in held.items()}
    archive.write(path, header, arrays)


def restore(path: Path, weights: Mapping[str, Array]) -> Observation:
    """Read what `save` wrote; weights: those of the model it was made with. A UsageError for another file."""
    header, held = archive.read(path, "a saved run")
    try:
        if header["format"] != FORMAT:
            raise ValueError(f"wanted the format {FORMAT}; got {header['format']!r}")
        ops = all_ops()
        steps = tuple(_restored(step, held, weights, ops) for step in header["steps"])
        return Observation(tuple(map(int, header["ids"])), steps, dict(header["facts"]))
    except (ValueError, KeyError, TypeError, AttributeError, GraphError) as error:
        raise UsageError(f"{path}: cannot be read as a saved run: {error}") from None


def _restored(step: Any, held: Mapping[str, Array], weights: Mapping[str, Array], ops: Any) -> Step:
    def of(kind: str) -> dict[str, Array]:
        start = f"{step['name']}/{kind}/"
        return {name.removeprefix(start): array for name, array in held.items() if name.startswith(start)}

    arrays = Arrays(of("i"), weights, of("s"), {name: int(size) for name, size in step["dims"].items()})
    applied = tuple(Applied(fusion, node, tuple(covered)) for fusion, node, covered in step["applied"])
    graph, plain = (text.parse(step[which], ops) for which in ("graph", "plain"))
    return Step(str(step["name"]), graph, plain, applied, arrays, of("v"))
