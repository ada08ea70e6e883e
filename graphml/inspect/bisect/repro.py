"""Reproduction of a wrong node as two small files that run alone: the script `NAME.py` and `NAME.npz`.

Arrays are cut down to a row and a few columns as long as the difference stays. Knows graphs and backends;
nothing of models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from graphml.backend import Device
from graphml.errors import GraphmlError, UsageError
from graphml.inspect.bisect.inside import where
from graphml.inspect.compare import archive
from graphml.inspect.compare.forced import LeafArrays, run
from graphml.inspect.compare.tolerances import difference, nmse
from graphml.ir import text
from graphml.ir.builder import infer_type
from graphml.ir.cell_groups import cells_dimension
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.op import Array, Type
from graphml.ir.shape import Dim, Symbol
from graphml.ir.verify import verify
from graphml.loading import discovery
from graphml.loading.own_ops import known_ops, load_ops_of_file, op_files
from graphml.system.read_files import guarded

COLUMNS = (16, 64)  # kept columns of a product's weight, the first number that is enough
PRODUCTS = {"linear": 1, "mul_mat": 1, "linears": 0, "mul_mat_glu": 2}  # op -> index of the activation


@dataclass(frozen=True)
class ReproGraph:
    """A graph in its text form, with the output `result`, and the backend that runs it."""

    backend: str
    graph: str


def reproduce(
    a: ReproGraph,
    b: ReproGraph,
    arrays: Path,
    limit: float,
    threads: int | None = None,
    ops: Sequence[str] = (),
) -> int:
    """Run both sides on the arrays of an .npz, print how they differ; returns 1 for more than the limit.

    ops: files beside the .npz that declare ops of the graphs; they are run.
    """
    for name in ops:
        load_ops_of_file(arrays.with_name(name))
    held = load(arrays)
    results = []
    for side in (a, b):
        with_device = discovery.backend(side.backend).open(threads)
        try:
            results.append(run(with_device, verify(text.parse(side.graph, known_ops())), held)[0]["result"])
        finally:
            with_device.close()
    error = difference(*results)
    print(f"{a.backend} against {b.backend}: NMSE {error.nmse:.3e}, allowed {limit:.0e}; "
          f"max abs {error.max_abs:.3e}, max ULP {error.max_ulp}")  # fmt: skip
    if error.nmse > limit:
        print(where(*results))
        for side, result in zip((a, b), results, strict=True):
            print(f"{side.backend:>9}: {np.array2string(result.ravel()[:6], precision=6)} ...")
        return 1
    print("they agree")
    return 0


def load(path: Path) -> LeafArrays:
    """The arrays of a repro; a UsageError for any other file."""
    dims, held = archive.read(path, "the arrays of a repro")
    parts: dict[str, dict[str, Array]] = {"inputs": {}, "weights": {}, "states": {}}
    with guarded(path, UsageError, "cannot be read as the arrays of a repro"):
        for name, array in held.items():
            kind, _, leaf = name.partition("/")
            parts[kind][leaf] = array
        return LeafArrays(dims={name: int(size) for name, size in dims.items()}, **parts)


@dataclass(frozen=True)
class ReproCase:
    """The contents of a repro: two graphs with the same leaves, and the arrays of the leaves."""

    graph: Graph
    other: Graph
    arrays: LeafArrays


def write(
    case: ReproCase,
    backends: tuple[str, str],
    limit: float,
    title: str,
    folder: Path,
    threads: int | None = None,
) -> tuple[Path, Path]:
    """Write `repro.py` and `repro.npz` into the folder, in the smallest form that still differs.

    Files that declare ops of the graphs are copied beside them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chosen = shrink(case, backends, limit, threads)
    script, arrays = folder / "repro.py", folder / "repro.npz"
    ops = {f"ops_{path.name}": path.read_bytes() for path in op_files(chosen.graph, chosen.other)}
    for name, content in ops.items():
        (folder / name).write_bytes(content)
    script.write_text(_script(chosen, backends, limit, title, list(ops)), encoding="utf-8")
    held: dict[str, Array] = {}
    for kind in ("inputs", "weights", "states"):
        held |= {f"{kind}/{name}": array for name, array in getattr(chosen.arrays, kind).items()}
    archive.write(arrays, dict(chosen.arrays.dims), held)
    return script, arrays


def _script(case: ReproCase, backends: tuple[str, str], limit: float, title: str, ops: Sequence[str]) -> str:
    sides = []
    for name, graph in (("A", case.graph), ("B", case.other)):
        lines = "\n".join(f"    {line + chr(10)!r}" for line in text.write(_anonymous(graph)).splitlines())
        sides.append(f"{name} = ReproGraph({backends[name == 'B']!r}, (\n{lines}\n))\n")
    besides = f", ops={list(ops)!r}" if ops else ""
    return (
        f'"""{title}\n\nMade by `graphml bisect`; needs graphml and the .npz beside it.'
        ' Exit code 1: the difference is still there.\n"""\n\n'
        "import sys\nfrom pathlib import Path\n\n"
        "from graphml.inspect.bisect.repro import ReproGraph, reproduce\n\n"
        f"{''.join(sides)}\n"
        f'sys.exit(reproduce(A, B, Path(__file__).with_suffix(".npz"), limit={limit!r}{besides}))\n'
    )


def _anonymous(graph: Graph) -> Graph:
    """The graph without the lines of the user's files."""
    return _rebuilt(graph, {})


def shrink(case: ReproCase, backends: tuple[str, str], limit: float, threads: int | None = None) -> ReproCase:
    """The smallest of a few cuts whose two sides still differ by more than the limit, else the whole."""
    devices = [discovery.backend(name).open(threads) for name in backends]
    try:
        full = _results(case, devices)
        for cut in _cuts(_small_bounds(case), full[0], full[1]):
            try:
                if nmse(*_results(cut, devices)) > limit:
                    return cut
            except GraphmlError:  # a cut that the graph does not allow
                continue
        return case
    finally:
        for device in devices:
            device.close()


def _results(case: ReproCase, devices: Sequence[Device]) -> list[Array]:
    graphs = (case.graph, case.other)
    return [
        run(device, graph, case.arrays)[0]["result"] for device, graph in zip(devices, graphs, strict=True)
    ]


def _small_bounds(case: ReproCase) -> ReproCase:
    """The bounds of the cache's symbols as small as the arrays."""

    def smaller(dim: Dim) -> Dim:
        if isinstance(dim, Symbol) and (dim.name == "B" or cells_dimension(dim.name)):
            return Symbol(dim.name, case.arrays.dims[dim.name])
        return dim

    def change(graph: Graph) -> Graph:
        leaves = [node for node in graph.nodes if node.op.family == "leaf"]
        return _rebuilt(
            graph, {node.name: Type(node.dtype, tuple(map(smaller, node.shape))) for node in leaves}
        )

    return ReproCase(change(case.graph), change(case.other), case.arrays)


def _cuts(case: ReproCase, got: Array, wanted: Array) -> Iterator[ReproCase]:
    """Cuts from small to large."""
    error = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
    error[~np.isfinite(error)] = np.inf
    by_row = error.reshape(len(error), -1).max(1) if error.ndim else error.reshape(1)
    worst = int(by_row.argmax())
    column = int(error.reshape(-1, error.shape[-1]).max(0).argmax())
    rows = _one_row(case, worst)
    for base in (rows, case):
        if base is not None:
            for narrow in (*(_few_columns(base, column, count) for count in COLUMNS), base):
                if narrow is not None:
                    yield _used_rows(narrow)


def _one_row(case: ReproCase, row: int) -> ReproCase | None:
    """One token alone, if the result has a row for each."""
    first: Dim = case.graph.outputs["result"].shape[0] if case.graph.outputs["result"].shape else 1
    if not isinstance(first, Symbol) or first.name not in ("T", "O") or case.arrays.dims[first.name] == 1:
        return None
    inputs = dict(case.arrays.inputs)
    for name, node in _leaves(case, "input").items():
        if node.shape and node.shape[0] == first:
            inputs[name] = inputs[name][row : row + 1].copy()
    return replace(case, arrays=replace(case.arrays, inputs=inputs, dims={**case.arrays.dims, first.name: 1}))


def _few_columns(case: ReproCase, column: int, count: int) -> ReproCase | None:
    """A few columns around one of a product's result, and those of its other results and operands."""
    products = [
        node for graph in (case.graph, case.other) for node in graph.nodes if node.op.name in PRODUCTS
    ]
    kept = {name for node in products for name in _leaf_names(node.inputs[PRODUCTS[node.op.name]])}
    weights = {name: node for name, node in _leaves(case, "weight").items() if name not in kept}
    matrices = {name: node for name, node in weights.items() if len(node.shape) == 2}
    heights = {node.shape[0] for node in matrices.values()}
    n = case.graph.outputs["result"].shape[-1]
    if n not in heights or not isinstance(n, int) or n <= count:
        return None
    start = min(column // count * count, n - count)
    spans = {height: slice(0, count) for height in heights} | {n: slice(start, start + count)}
    types: dict[str, Type] = {}
    parts = {kind: dict(getattr(case.arrays, kind)) for kind in ("inputs", "weights")}
    for kind, leaves in (("inputs", _leaves(case, "input")), ("weights", weights)):
        for name, node in leaves.items():
            if name in matrices:
                parts[kind][name] = parts[kind][name][spans[node.shape[0]]].copy()
                types[name] = Type(node.dtype, (len(parts[kind][name]), *node.shape[1:]))
            elif name not in kept and node.shape and node.shape[-1] in spans:
                parts[kind][name] = parts[kind][name][..., spans[node.shape[-1]]].copy()
                types[name] = Type(node.dtype, (*node.shape[:-1], parts[kind][name].shape[-1]))
    try:
        graphs = _rebuilt(case.graph, types), _rebuilt(case.other, types)
    except GraphmlError:
        return None
    return ReproCase(*graphs, replace(case.arrays, **parts))


def _used_rows(case: ReproCase) -> ReproCase:
    """Only the rows that are read of a table (an embedding)."""
    nodes = [node for graph in (case.graph, case.other) for node in graph.nodes]
    readers = [node for node in nodes if node.op.name == "get_rows" and node.inputs[0].op.name == "weight"]
    if not readers or len({(node.inputs[0].name, node.inputs[1].name) for node in readers}) != 1:
        return case
    table, indices = readers[0].inputs
    others = [node for node in nodes for source in node.inputs if source.name in (table.name, indices.name)]
    if any(node.op.name != "get_rows" for node in others) or indices.name not in case.arrays.inputs:
        return case
    used, renamed = np.unique(case.arrays.inputs[indices.name], return_inverse=True)
    inputs = {**case.arrays.inputs, indices.name: renamed.astype(np.int32)}
    weights = {**case.arrays.weights, table.name: case.arrays.weights[table.name][used]}
    types = {table.name: Type(table.dtype, (len(used), *table.shape[1:]))}
    graphs = _rebuilt(case.graph, types), _rebuilt(case.other, types)
    return ReproCase(*graphs, replace(case.arrays, inputs=inputs, weights=weights))


def _leaves(case: ReproCase, kind: str) -> dict[str, Node]:
    return {**case.graph.leaves(kind), **case.other.leaves(kind)}


def _leaf_names(node: Node) -> set[str]:
    if node.op.family == "leaf":
        return {node.name}
    return {name for source in node.inputs for name in _leaf_names(source)}


def _rebuilt(graph: Graph, types: Mapping[str, Type]) -> Graph:
    """The graph with other types of its leaves, all other types inferred again, and without sources."""
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        inputs = tuple(new[source] for source in node.inputs)
        if node.op.family == "leaf":
            kind = types.get(node.name, node.type)
        else:
            kind = infer_type(node.op, [source.type for source in inputs], node.attributes)
        new[node] = replace(node, inputs=inputs, type=kind, source=None)
    return make_graph(new.values(), {name: new[node] for name, node in graph.outputs.items()})
