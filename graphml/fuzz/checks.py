"""Runs a random graph in every way that must give the same, and tells the first that does not.

Fused and plain, with a memory plan and with every value kept, as one step and as several, on one thread and
on more. An error of a backend is a difference too: the graph is valid. Knows backends through their contract.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphml.backend import Backend, Device, State
from graphml.compiler.compile import Compiled, compile_graph
from graphml.compiler.options import CompileOptions
from graphml.fuzz.graphs import DrawnGraph
from graphml.fuzz.oracle import MORE_RUNS, RUNS, WantedOutput, differs, run, turned_by_rounding, wanted
from graphml.ir import text
from graphml.ir.dtype import F32
from graphml.ir.op import Array
from graphml.ir.ops.leaf import weight_leaf
from graphml.ir.shape import Symbol, resolve
from graphml.ir.verify import verify
from graphml.passes.expand import expand
from graphml.passes.fusion import all_ops

ERROR = "error"


@dataclass(frozen=True)
class WrongResult:
    """What went wrong: on which backend, in which way of running, and what."""

    backend: str
    way: str
    what: str

    @property
    def kind(self) -> tuple[str, str, str]:
        """What a smaller graph must show as well: backend and way, and the type of an error."""
        return self.backend, self.way, self.what.partition(":")[0] if self.way == ERROR else ""


@dataclass(frozen=True)
class CheckedBackend:
    """A backend and its devices, each with another number of threads."""

    backend: Backend
    devices: Sequence[Device]


def check(drawn: DrawnGraph, sides: Sequence[CheckedBackend]) -> WrongResult | None:
    """The first difference; None where there is none. One is looked at again, with a closer judge."""
    seen = next(_differences(drawn, sides, RUNS), None)
    return None if seen is None else next(_differences(drawn, sides, MORE_RUNS), None)


def _differences(drawn: DrawnGraph, sides: Sequence[CheckedBackend], runs: int) -> Iterator[WrongResult]:
    graph = verify(drawn.graph)
    written = text.write(graph)
    if text.write(text.parse(written, all_ops())) != written:
        yield WrongResult("reference", "text", "written and parsed it is another graph")
    want = wanted(drawn, runs)
    if drawn.in_steps:
        yield from _told("reference", "in steps", _in_steps_of_numpy(drawn), want)
    for side in sides:
        yield from _of_side(drawn, side, want, runs)


def _of_side(
    drawn: DrawnGraph, side: CheckedBackend, want: Mapping[str, WantedOutput], runs: int
) -> Iterator[WrongResult]:
    choose, graph = random.Random(drawn.number), drawn.graph
    device = choose.choice(side.devices)
    every = [node for node in graph.nodes if node.inputs and node.dtype is F32 and not node.op.is_write]
    kept = CompileOptions("none", keep=tuple(node.name for node in every))
    ways = {"fused": CompileOptions(), **choose.choice(({"plain": CompileOptions("none")}, {"kept": kept}))}
    for way, options in ways.items():
        try:
            compiled = _compiled(drawn, side.backend, device, options)
            exact = want
            if any(node.dtype.is_format for node in compiled.graph.nodes if node.op is not weight_leaf):
                # Rounded to 8 bits as NumPy does it; how far that moves the outputs is judged too.
                exact = wanted(replace(drawn, graph=expand(compiled.graph)), runs)
                turned = turned_by_rounding(graph)
                rounded = {name: value.value for name, value in exact.items() if name not in turned}
                yield from _told("reference", f"{way}, in 8 bits", rounded, want)
            got = _whole(compiled, drawn, device)
            stepped = _in_steps(compiled, drawn, device, choose) if drawn.in_steps and way == "fused" else {}
        except Exception as error:
            yield WrongResult(side.backend.name, ERROR, _error(way, error))
            continue
        yield from _told(side.backend.name, way, got, exact)
        yield from _told(side.backend.name, f"{way} in steps", stepped, exact)


def _error(way: str, error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({way}; {last.filename}:{last.lineno})"


def _told(
    backend: str, way: str, got: Mapping[str, Array], want: Mapping[str, WantedOutput]
) -> Iterator[WrongResult]:
    for name in want:
        problem = differs(got[name], want[name]) if name in got else ""
        if problem:
            yield WrongResult(backend, way, f"{name}: {problem}")


def _compiled(drawn: DrawnGraph, backend: Backend, device: Device, options: CompileOptions) -> Compiled:
    weights = {name: drawn.leaves[name] for name in drawn.graph.leaves("weight")}
    return compile_graph(drawn.graph, backend, device, weights, options=options)


def _whole(compiled: Compiled, drawn: DrawnGraph, device: Device) -> dict[str, Array]:
    return _step(compiled, _state(compiled, drawn, device), drawn.feed.dims, drawn.arrays())


def _in_steps(
    compiled: Compiled, drawn: DrawnGraph, device: Device, choose: random.Random
) -> dict[str, Array]:
    """The rows of all outputs, computed in several steps."""
    state, parts = _state(compiled, drawn, device), []
    for rows in drawn.feed.splits(choose):
        dims = {**drawn.feed.dims, "T": len(rows), "O": len(rows)}
        parts.append(_step(compiled, state, dims, _inputs(drawn, rows)))
    return _joined(parts, drawn)


def _in_steps_of_numpy(drawn: DrawnGraph) -> dict[str, Array]:
    """The same in NumPy."""
    arrays, splits = drawn.arrays(), drawn.feed.splits(random.Random(drawn.number))
    return _joined([run(drawn.graph, {**arrays, **_inputs(drawn, rows)}) for rows in splits], drawn)


def _inputs(drawn: DrawnGraph, rows: range) -> dict[str, Array]:
    """The inputs of some rows as a step."""
    own = {
        name: drawn.leaves[name][rows.start : rows.stop] if _has_rows(node.shape) else drawn.leaves[name]
        for name, node in drawn.graph.leaves("input").items()
        if name in drawn.leaves
    }
    return {**own, **drawn.feed.of_rows(rows)}


def _state(compiled: Compiled, drawn: DrawnGraph, device: Device) -> State:
    state = device.state(compiled.graph, drawn.feed.dims)
    for name in compiled.graph.leaves("state"):
        state.array(name)[...] = drawn.leaves[name]
    return state


def _step(
    compiled: Compiled, state: State, dims: Mapping[str, int], values: Mapping[str, Array]
) -> dict[str, Array]:
    symbols = compiled.graph.symbols()
    known = {name: dims.get(name, symbol.bound) for name, symbol in symbols.items()}
    for name, node in compiled.graph.leaves("input").items():
        array = compiled.program.inputs[name]
        if array.dtype.kind == "f":
            array[...] = np.nan  # what lies behind the rows of a step has no influence
        array[tuple(map(slice, resolve(node.shape, known)))] = values[name]
    return {name: np.array(array) for name, array in compiled.program.run(known, state).items()}


def _joined(parts: Sequence[Mapping[str, Array]], drawn: DrawnGraph) -> dict[str, Array]:
    outputs = [name for name, node in drawn.graph.outputs.items() if _has_rows(node.shape)]
    return {name: np.concatenate([part[name] for part in parts]) for name in outputs}


def _has_rows(shape: Sequence[object]) -> bool:
    return bool(shape) and isinstance(shape[0], Symbol) and shape[0].name in ("T", "O")
