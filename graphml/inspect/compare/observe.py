"""Observation of a run with every value kept: by default a prompt in one batch, then one token.

An observation can be saved and compared with a later one. Knows executors and graphs; nothing of the use of
the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from graphml.backend import Program, no_progress
from graphml.compiler.compile import prepare
from graphml.compiler.multi_device import PartsDevice
from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.inspect.compare import archive
from graphml.inspect.compare.copies import Copied, with_copies
from graphml.inspect.compare.forced import OUTPUT, LeafArrays, Lowered, feed, observed, shown
from graphml.inspect.compare.route import Leg, PositionCells, by_token, usual
from graphml.inspect.compare.tolerances import ArrayDifference, difference
from graphml.ir import text
from graphml.ir.cell_groups import share_cells
from graphml.ir.graph import Graph
from graphml.ir.long_texts import long_values
from graphml.ir.op import Array
from graphml.ir.shape import bounds, resolve
from graphml.ir.verify import verify
from graphml.loading.own_ops import known_ops
from graphml.passes.fusion_log import AppliedFusion
from graphml.passes.refusals import refusals
from graphml.runtime.programs.executor import Executor
from graphml.system.read_files import guarded

FORMAT = "graphml-observation-1"


@dataclass(frozen=True)
class ObservedStep:
    """One evaluation. graph: after the last pass; plain: as built; applied: fusions between them.

    values: node -> its value, states after the step; arrays: the values of the leaves before it. unwatched:
    differences of logits and states between the program of sessions and the observed one, by name; None if it
    was not run. whole: see `Leg`. given: node -> the value that its readers read, if it is not the node's.
    copies, backends: of a graph on several devices, see `compare.copies`. fuse: the run's switches.
    """

    name: str
    graph: Graph
    plain: Graph
    applied: tuple[AppliedFusion, ...]
    arrays: LeafArrays
    values: Mapping[str, Array]
    unwatched: Mapping[str, ArrayDifference] | None = None
    whole: bool = True
    given: Mapping[str, Array] = field(default_factory=dict)
    copies: Mapping[str, Copied] = field(default_factory=dict)
    backends: Mapping[str, str] = field(default_factory=dict)
    fuse: str = ""


@dataclass(frozen=True)
class Observation:
    """All values of a run.

    facts: model, backend, fuse, place, kv. in_numpy: nodes that the backend has no kernel for.
    """

    ids: tuple[int, ...]
    steps: tuple[ObservedStep, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    in_numpy: tuple[str, ...] = ()


def observe(
    executor: Executor,
    ids: Sequence[int],
    options: CompileOptions | None = None,
    legs: Sequence[Leg] | None = None,
    in_use: bool = True,
) -> Observation:
    """Run ids, by default all but the last in one batch and then the last alone, with all values kept.

    legs: other steps; each sequence begins with the first id and repeats the ids. Of a model that takes one
    token of a text at a time they are that many more (`by_token`). in_use: also run the
    programs of sessions.
    """
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
    with executor.lock:
        run = _ObservedRun(executor, tuple(map(int, ids)), chosen, in_use)
        chosen_legs = usual(len(ids)) if legs is None else legs
        steps = run.steps(by_token(chosen_legs) if executor.max_chunk < executor.n_batch else chosen_legs)
    facts = {
        "model": str(executor.file.path), "backend": executor.backend.name, "fuse": chosen.fuse,
        "place": chosen.place, "kv": executor.cache_dtype,
    }  # fmt: skip
    return Observation(run.ids, steps, facts, tuple(run.in_numpy))


@dataclass
class _WatchedGraph:
    """A graph after the last pass and as built, its fusions, and its program with every value kept.

    in_use: the graph and the program of sessions; None unless they are run too. copies, backends: see
    `ObservedStep`.
    """

    graph: Graph
    plain: Graph
    applied: tuple[AppliedFusion, ...]
    program: Lowered
    in_use: tuple[Graph, Program] | None
    copies: Mapping[str, Copied]
    backends: Mapping[str, str]


@dataclass
class _ObservedRun:
    executor: Executor
    ids: tuple[int, ...]
    options: CompileOptions
    in_use: bool
    watched: dict[tuple[int, int], _WatchedGraph] = field(default_factory=dict)
    in_numpy: dict[str, None] = field(default_factory=dict)

    def steps(self, legs: Sequence[Leg]) -> tuple[ObservedStep, ...]:
        """The steps; those with the same number of sequences share one cache."""
        steps: list[ObservedStep] = []
        for _, several in groupby(legs, key=lambda leg: len(leg.counts)):
            these = list(several)
            cells, states = PositionCells(these), dict[str, Array]()
            for leg in these:
                step, states = self._step(leg, cells, states)
                steps.append(step)
        return tuple(steps)

    def _step(
        self, leg: Leg, cells: PositionCells, states: dict[str, Array]
    ) -> tuple[ObservedStep, dict[str, Array]]:
        before, count = list(cells.lengths), sum(leg.counts)
        input_arrays = cells.step(leg)
        tokens = [self._ids(start, n) for start, n in zip(before, leg.counts, strict=True)]
        input_arrays["tokens"] = np.concatenate(tokens)
        lengths = input_arrays["lengths"][input_arrays["sequences"]]
        input_arrays |= long_values(self.executor.long_inputs, lengths, cells.n_cells)
        watched = self._watched(count, len(leg.counts))
        graph, device = watched.graph, self.executor.device
        if len(leg.counts) > 1:  # rows have the stride of the program's longest
            tables = [leaf for name, leaf in graph.leaves("input").items() if name.startswith("block_table")]
            width = bounds(tables[0].shape)[1] - input_arrays["block_table"].shape[1] if tables else 0
            input_arrays["block_table"] = np.pad(input_arrays["block_table"], ((0, 0), (0, width)))
        dims = {
            "T": count, "O": len(input_arrays["output_rows"]), "S": len(leg.counts),
            "B": input_arrays["block_table"].shape[1], "C": cells.n_cells,
        }  # fmt: skip
        share_cells(graph.leaves("input"), input_arrays, dims)
        if not states:
            fresh = device.state(graph, dims)
            states = {leaf: fresh.array(leaf).copy() for leaf in graph.leaves("state")}
        inputs = {leaf: input_arrays[leaf].copy() for leaf in graph.leaves("input")}
        arrays = LeafArrays(inputs, self.executor.weights, states, dims)
        outputs, after = watched.program.run(arrays)
        kept = {node.name: outputs[node.name] for node in shown(graph)}
        logits = outputs[f"{OUTPUT}logits"]
        unwatched = self._unwatched(watched, arrays, {**after, "logits": logits})
        step = ObservedStep(
            leg.name, graph, watched.plain, watched.applied, arrays, kept, unwatched, whole=leg.whole,
            copies=watched.copies, backends=watched.backends, fuse=self.options.fuse,
        )  # fmt: skip
        return step, after

    def _ids(self, start: int, count: int) -> Array:
        """`count` ids from an index of the text on, which repeats at its end."""
        return np.array([self.ids[(start + i) % len(self.ids)] for i in range(count)], np.int32)

    def _watched(self, n_tokens: int, n_sequences: int) -> _WatchedGraph:
        """The graph for steps of so many tokens."""
        executor = self.executor
        bound = n_sequences if n_tokens <= n_sequences else executor.n_batch
        key = bound, n_sequences
        if key not in self.watched:
            built = executor.build(bound, n_sequences, n_sequences)
            prepared = prepare(built, executor.backend, executor.device, self.options)
            graph, placement = prepared.graph, prepared.placement
            copies: Mapping[str, Copied] = {}
            backends: Mapping[str, str] = {}
            if placement is not None and isinstance(executor.device, PartsDevice):
                parted = with_copies(prepared, executor.device, executor.weights)
                graph, program = parted.graph, parted.program
                copies, backends = parted.copies, parted.backends
            else:
                program = Lowered(executor.device, observed(graph), executor.weights)
            if placement is None:
                alone = [node.name for node, _ in refusals(graph, executor.backend)]
            else:
                alone = [placed.name for placed in placement.fallbacks]
            self.in_numpy.update(dict.fromkeys(alone))
            in_use: tuple[Graph, Program] | None = None
            if self.in_use and (placement is not None or executor.has_top_k):
                compiled = executor.programs.compiled_for(n_tokens, n_sequences, options=self.options)
                in_use = compiled.graph, compiled.program
            elif self.in_use:
                in_use = graph, executor.device.lower(graph, prepared.plan, executor.weights, no_progress)
            self.watched[key] = _WatchedGraph(
                graph, prepared.snapshots["build"], prepared.fusions.applied, program, in_use,
                copies, backends,
            )  # fmt: skip
        return self.watched[key]

    def _unwatched(
        self, watched: _WatchedGraph, arrays: LeafArrays, wanted: Mapping[str, Array]
    ) -> dict[str, ArrayDifference] | None:
        """The differences of the same step run by the program of sessions."""
        if watched.in_use is None:
            return None
        graph, program = watched.in_use
        state = self.executor.device.state(graph, arrays.dims)
        unused: dict[str, Array] = {
            leaf: np.zeros(resolve(node.shape, arrays.dims), node.dtype.numpy)
            for leaf, node in graph.leaves("input").items()
        }
        feed(program.inputs, graph, replace(arrays, inputs={**unused, **arrays.inputs}), state)
        got = {"logits": np.array(program.run(arrays.dims, state)["logits"])}
        got |= {leaf: np.array(state.array(leaf)) for leaf in graph.leaves("state")}
        return {name: difference(array, wanted[name]) for name, array in got.items()}


def save(observation: Observation, path: Path) -> None:
    """Write all but the weights to an .npz."""
    header = {
        "format": FORMAT,
        "ids": observation.ids,
        "facts": dict(observation.facts),
        "in_numpy": observation.in_numpy,
        "steps": [
            {
                "name": step.name, "dims": dict(step.arrays.dims), "graph": text.write(step.graph),
                "plain": text.write(step.plain),
                "applied": [[entry.fusion, entry.node, list(entry.covered)] for entry in step.applied],
                "copies": [
                    [name, copy.value, copy.source, copy.target] for name, copy in step.copies.items()
                ],
                "backends": dict(step.backends),
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
    """Read what `save` wrote; weights: those of the model it was made with. A UsageError for another."""
    header, held = archive.read(path, "a saved run")
    with guarded(path, UsageError, "cannot be read as a saved run"):
        if header["format"] != FORMAT:
            raise ValueError(f"wanted the format {FORMAT}; got {header['format']!r}")
        ops = known_ops()
        steps = tuple(_restored(step, held, weights, ops) for step in header["steps"])
        in_numpy = tuple(map(str, header.get("in_numpy", ())))
        return Observation(tuple(map(int, header["ids"])), steps, dict(header["facts"]), in_numpy)


def _restored(step: Any, held: Mapping[str, Array], weights: Mapping[str, Array], ops: Any) -> ObservedStep:
    def of(kind: str) -> dict[str, Array]:
        start = f"{step['name']}/{kind}/"
        return {name.removeprefix(start): array for name, array in held.items() if name.startswith(start)}

    arrays = LeafArrays(of("i"), weights, of("s"), {name: int(size) for name, size in step["dims"].items()})
    applied = tuple(AppliedFusion(fusion, node, tuple(covered)) for fusion, node, covered in step["applied"])
    graph, plain = (verify(text.parse(step[which], ops)) for which in ("graph", "plain"))
    copies = {str(name): Copied(*map(str, said)) for name, *said in step.get("copies", ())}
    backends = {str(name): str(backend) for name, backend in step.get("backends", {}).items()}
    values = of("v")
    return ObservedStep(
        str(step["name"]), graph, plain, applied, arrays, values, copies=copies, backends=backends
    )
