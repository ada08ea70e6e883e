"""How strongly each weight's columns are used by a text: sums of the squares of what products read.

As llama-imatrix collects it: of each product of a layer with a weight, the squares of all tokens' activations
by column, and how many tokens that was; of experts each one's own. Knows graphs, sessions and arrays; nothing
of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from graphml.api.capture import Probe
from graphml.api.model import Model
from graphml.errors import UsageError, WeightsError
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.shape import Symbol, bound

LAYERS, OUTPUT = "blk.", "output.weight"
PIECE_BYTES = 256 << 20
"""Captured values of one evaluation that may be in memory at once."""
Sums = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass
class Importance:
    """sums: name of a weight -> float64 [n_mat, columns], squares added up; counts: -> tokens [n_mat].

    n_mat: 1, or the number of experts. n_chunks chunks of chunk_size tokens of the texts `datasets`.
    """

    sums: dict[str, Sums] = field(default_factory=dict)
    counts: dict[str, Counts] = field(default_factory=dict)
    datasets: tuple[str, ...] = ()
    n_chunks: int = 0
    chunk_size: int = 512

    def of(self, name: str) -> NDArray[np.float32] | None:
        """The mean square of each column, float32 [n_mat, columns]; None for a weight that was not seen.

        1 for an expert that no token had, and for a matrix that read nothing but zeros: by weights of 0 a
        quantiser would make zeros of it.
        """
        if name not in self.sums:
            return None
        counts = self.counts[name][:, None]
        reads = (counts > 0) & self.sums[name].any(axis=1, keepdims=True)
        means = np.divide(self.sums[name], counts, out=np.ones_like(self.sums[name]), where=reads)
        return means.astype(np.float32)

    def add(self, name: str, sums: Sums, counts: Counts, source: str = "imatrix") -> None:
        """More tokens of a weight; a UsageError, which names `source`, where it has other sizes."""
        if name not in self.sums:
            self.sums[name], self.counts[name] = sums.copy(), counts.copy()
            return
        if self.sums[name].shape != sums.shape:
            raise UsageError(
                f"{source}: {name}: wanted sums {list(self.sums[name].shape)} as before; "
                f"got {list(sums.shape)}"
            )
        self.sums[name] += sums
        self.counts[name] += counts

    def check_same_model(self, other: Importance, source: str) -> None:
        """UsageError, which names `source`, where another one is of layers that this one's model has not."""
        for name, sums in other.sums.items():
            own = self.sums.get(name)
            if name.startswith(LAYERS) and (own is None or own.shape != sums.shape):
                has = "none" if own is None else f"sums {list(own.shape)}"
                raise UsageError(
                    f"{source}: {name}: has sums {list(sums.shape)}, the model {has}: it is of another model"
                )

    def add_all(self, other: Importance, source: str = "imatrix") -> None:
        """All that another one has seen. source: the name of the other in errors."""
        for name, sums in other.sums.items():
            self.add(name, sums, other.counts[name], source)
        self.datasets += tuple(name for name in other.datasets if name not in self.datasets)
        self.n_chunks += other.n_chunks


@dataclass(frozen=True)
class _Read:
    """What weights read: a value, and the experts of its rows by another one. weights: name -> n_mat."""

    value: str
    ids: str | None
    n_mat: int
    weights: tuple[str, ...]


def n_chunks_seen(n_ids: int, n_ctx: int, chunks: int | None) -> int:
    """Whole chunks of a text, at most `chunks`; UsageError for a text without one."""
    if n_ids < n_ctx:
        raise UsageError(f"text: wanted at least {n_ctx} tokens, one chunk; got {n_ids}")
    return n_ids // n_ctx if chunks is None else min(chunks, n_ids // n_ctx)


def importance(
    model: Model, ids: Sequence[int], n_ctx: int, chunks: int | None = None, bos: int | None = None,
    output: bool = False, begun: Importance | None = None,
) -> Iterator[Importance]:  # fmt: skip
    """What the model's products read, after each chunk of `n_ctx` ids: the same object, which grows.

    chunks: at most so many. bos: the id that takes the place of each chunk's first. output: the output matrix
    too. begun: of the same text and chunks, to go on from. UsageError for a text without a whole chunk.
    """
    n_chunks = n_chunks_seen(len(ids), n_ctx, chunks)
    reads = _reads(model.executor.build(1, 1), output)
    seen = Importance(chunk_size=n_ctx) if begun is None else begun
    names = sorted({read.value for read in reads} | {read.ids for read in reads if read.ids is not None})
    with model.session(n_ctx, capture=names) as session:
        rows = max(16, PIECE_BYTES // sum(Probe(model.executor, names).row_bytes.values()))
        for index in range(seen.n_chunks, n_chunks):
            chunk = list(ids[index * n_ctx : (index + 1) * n_ctx])
            chunk = chunk if bos is None else [bos, *chunk[1:]]
            session.rewind(0)
            parts = Importance()
            for begin in range(0, n_ctx, rows):
                session.eval(chunk[begin : begin + rows], all_logits=True)
                for read in reads:
                    _add(parts, read, session.captured)
            seen.add_all(parts)
            seen.n_chunks += 1
            yield seen


def _reads(graph: Graph, output: bool) -> list[_Read]:
    """What the graph's products with weights read; those of one value and one choice of experts together."""
    weights: dict[tuple[str, str | None, int], list[str]] = {}
    for node in graph.nodes:
        if node.op.name not in ("mul_mat", "mul_mat_id"):
            continue
        weight, x, *ids = node.inputs
        name = _weight_name(weight)
        if name is None or not (name.startswith(LAYERS) or (output and name == OUTPUT)):
            continue
        if not isinstance(x.shape[0], Symbol):
            continue  # it reads no tokens
        n_mat = bound(weight.shape[0]) if ids else 1
        names = weights.setdefault((x.name, ids[0].name if ids else None, n_mat), [])
        if name not in names:
            names.append(name)
    if not weights:
        raise UsageError("imatrix: the model has no product of a layer with a weight")
    return [_Read(*key, tuple(names)) for key, names in weights.items()]


def _weight_name(node: Node) -> str | None:
    """The name of the weight that a product's first operand is, None for another value."""
    while node.op.name in ("dequantize", "reshape"):
        node = node.inputs[0]
    return node.name if node.op.name == "weight" else None


def _add(seen: Importance, read: _Read, captured: Mapping[str, Array]) -> None:
    x = captured[read.value]
    if read.ids is None:
        rows = x.reshape(-1, x.shape[-1])
        sums, counts = _squares(rows)[None], np.array([len(rows)], np.int64)
    else:
        sums, counts = _squares_of_experts(x, captured[read.ids], read.n_mat)
    if not np.isfinite(sums).all():
        raise WeightsError(f"imatrix: {read.weights[0]}: its product reads numbers that are not finite")
    for name in read.weights:
        seen.add(name, sums, counts)


def _squares(rows: Array) -> Sums:
    """Squares of rows [n, columns] added up by column."""
    sums: Sums = np.einsum("ij,ij->j", rows, rows).astype(np.float64)
    return sums


def _squares_of_experts(x: Array, ids: Array, n_mat: int) -> tuple[Sums, Counts]:
    """x [T, columns] or [T, used, columns] and ids [T, used] -> sums [n_mat, columns], counts [n_mat]."""
    sums = np.zeros((n_mat, x.shape[-1]))
    counts = np.zeros(n_mat, np.int64)
    tokens, places = np.nonzero((ids >= 0) & (ids < n_mat))
    chosen = ids[tokens, places]
    for expert in np.unique(chosen):
        at = chosen == expert
        rows = x[tokens[at]] if x.ndim == 2 else x[tokens[at], places[at]]
        sums[expert] = _squares(rows)
        counts[expert] = len(rows)
    return sums, counts
