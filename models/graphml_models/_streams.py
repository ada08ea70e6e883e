"""Manifold-constrained hyper-connections (Xie et al. 2025, arXiv:2512.24880): mixed streams of residuals.

Streams are mixed before and behind each block, by weights made of all of them. T tokens, D model width, S
streams, E all of the streams' elements, M weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Self

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, Tensors
from graphml_models._samples import Metadata, Shapes

HYPER = "hyper_connection"


@dataclass(frozen=True)
class Streams:
    """Their number, and how often the columns of what mixes them are brought to a sum of 1; eps: there.

    norm_eps: of the norm before their weights.
    """

    n: int
    n_balance: int
    eps: float
    norm_eps: float

    @classmethod
    def read(cls, keys: Keys, norm_eps: float) -> Self:
        """From the file's metadata."""
        n, n_balance = keys.integer(f"{HYPER}.count"), keys.integer(f"{HYPER}.sinkhorn_iterations")
        if not (1 <= n <= 64 and 1 <= n_balance <= 64):
            raise keys.unsupported(f"{HYPER}.count", "1 to 64 streams, balanced 1 to 64 times")
        return cls(n, n_balance, keys.number(f"{HYPER}.epsilon"), norm_eps)


def embedded(g: Builder, streams: Streams, weights: Tensors) -> Node:
    """The rows of the tokens in each stream, [T, S, D]."""
    return g.repeat(g.heads(g.embed(weights["token_embd"], g.tokens), 1), streams.n)


def total(g: Builder, x_TSD: Node, weights_TS: Node | None = None) -> Node:
    """The sum over the streams, [T, D], each times its weight."""
    if weights_TS is not None:
        x_TSD = g.mul(x_TSD, g.reshape(weights_TS, fixed(weights_TS.shape[1]), 1))
    return g.reshape(g.sum_rows(g.permute(x_TSD, 0, 2, 1)), fixed(x_TSD.shape[2]))


def gather(
    g: Builder, streams: Streams, layer: Layer, x_TSD: Node, name: str
) -> tuple[Node, tuple[Node, Node]]:
    """What a block reads of the streams, [T, D]; its own weight in each, [T, S], and theirs, [T, S, S].

    In theirs the streams that come in stand last; each row and column sums to about 1.
    """
    n, eps = streams.n, streams.eps
    starts = (0, n, 2 * n, 2 * n + n * n)
    flat_TE = g.rms_norm(g.flatten(x_TSD), None, streams.norm_eps, f"{name}_norm")
    mixes_TM = layer.linear(flat_TE, f"{name}_fn", f"{name}_mixes", scaled=False, rows=starts[3])
    factors, base_M = vector(layer, f"{name}_scale", 3), vector(layer, f"{name}_base", starts[3])

    def part(i: int) -> Node:
        own = g.mul(g.columns(mixes_TM, starts[i], starts[i + 1]), g.columns(factors, i, i + 1))
        return g.add(own, g.columns(base_M, starts[i], starts[i + 1]))

    read_TS = g.scale(g.sigmoid(part(0)), 1.0, eps, name=f"{name}_read")
    write_TS = g.scale(g.sigmoid(part(1)), 2.0, name=f"{name}_write")
    mix_TSS = g.scale(g.softmax(g.reshape(part(2), n, n)), 1.0, eps)
    for _ in range(2 * streams.n_balance - 1):  # columns, rows, ..., columns
        mix_TSS = g.permute(mix_TSS, 0, 2, 1)
        mix_TSS = g.div(mix_TSS, g.scale(g.sum_rows(mix_TSS), 1.0, eps))
    return total(g, x_TSD, read_TS), (write_TS, mix_TSS)


def vector(tensors: Layer | Tensors, name: str, size: int) -> Node:
    """The tensor, if it has so many elements."""
    tensor = tensors[name]
    if tensor.shape != (size,):
        raise ArchitectureError(f"tensor {tensor.name}: wanted {size} elements; got {tensor.type}")
    return tensor


def spread(g: Builder, y_TD: Node, x_TSD: Node, mixed: tuple[Node, Node]) -> Node:
    """The streams behind a block, [T, S, D]: the old ones mixed, and what the block gives."""
    write_TS, mix_TSS = mixed
    n, width = fixed(write_TS.shape[1]), fixed(x_TSD.shape[2])
    mix_TE = g.flatten(mix_TSS)
    streams = [total(g, x_TSD, g.columns(mix_TE, i * n, (i + 1) * n)) for i in range(n)]
    old_TE = reduce(g.concat, streams)
    new_TSD = g.mul(g.repeat(g.heads(y_TD, 1), n), g.reshape(write_TS, n, 1))
    return g.add(g.reshape(old_TE, n, width), new_TSD, "streams")


def sampled(n: int) -> tuple[Metadata, Shapes]:
    """Metadata, and tensors of each layer, of a sample with n streams."""
    size = (2 + n) * n
    hyper: Shapes = {"_fn.weight": (size, n * 64), "_base.weight": (size,), "_scale.weight": (3,)}
    keys: Metadata = {f"{HYPER}.sinkhorn_iterations": 2, f"{HYPER}.epsilon": 1e-6, f"{HYPER}.count": n}
    return keys, {f"hc_{block}{part}": shape for block in ("attn", "ffn") for part, shape in hyper.items()}
