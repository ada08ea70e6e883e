"""Methods that arrange elements without computing."""

from __future__ import annotations

from math import prod

from graphml.errors import ShapeError
from graphml.ir.argument_kinds import Count, Index
from graphml.ir.arguments import method
from graphml.ir.builder import told_weights
from graphml.ir.node import Node
from graphml.ir.ops import layout as ops
from graphml.ir.shape import fixed
from graphml.ir.step import StepBuilder


@method
def heads(g: StepBuilder, x: Node, n_head: Count, name: str | None = None) -> Node:
    """[T, n_head * d] -> [T, n_head, d]; n_head must divide the last dimension.

    >>> g.heads(x, 4)
    %reshape: f32[T<=8, 4, 16] = reshape(%x)
    """
    width, rest = divmod(fixed(x.shape[-1]), n_head)
    if rest:
        weights = told_weights([x])
        of = f"; from {weights}" if weights else ""
        raise ShapeError(
            f"[g.heads] wanted n_head that divides the last dimension of {x.type}; got {n_head}{of}"
        )
    return g.record(ops.reshape, x, name=name, tail=(n_head, width))


@method
def flatten(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """[T, a, b] -> [T, a * b]: all dimensions after the first become one.

    >>> g.flatten(q)
    %reshape: f32[T<=8, 64] = reshape(%q)
    """
    return g.record(ops.reshape, x, name=name, tail=(prod(map(fixed, x.shape[1:])),))


@method
def reshape(g: StepBuilder, x: Node, *tail: Count, keep: Index = 1, name: str | None = None) -> Node:
    """The same elements, all after the first `keep` dimensions in the shape `tail`; a view.

    `tail` must have as many elements as it replaces; none of it may be left open (-1). The first dimension is
    often T, which is not known while the graph is built, so it is kept. Not of quantised weights.

    >>> g.reshape(x, 4, 16)
    %reshape: f32[T<=8, 4, 16] = reshape(%x)
    """
    return g.record(ops.reshape, x, name=name, tail=tail, keep=keep)


@method
def columns(g: StepBuilder, x: Node, start: Index, stop: Count, name: str | None = None) -> Node:
    """Elements start (included) to stop (excluded) of the last dimension: [..., stop - start].

    >>> g.columns(x, 16, 48)
    %columns: f32[T<=8, 32] = columns(%x)
    """
    return g.record(ops.columns, x, name=name, start=start, stop=stop)


@method
def concat(g: StepBuilder, a: Node, b: Node, name: str | None = None) -> Node:
    """a [..., n] and b [..., m] concatenated: [..., n + m]. Dtype and other dimensions must agree.

    >>> g.concat(x, x)
    %concat: f32[T<=8, 128] = concat(%x, %x)
    """
    return g.record(ops.concat, a, b, name=name)


@method
def repeat(g: StepBuilder, x: Node, n: Count, name: str | None = None) -> Node:
    """[T, 1, d] -> [T, n, d].

    >>> g.repeat(g.heads(x, 1), 4)
    %repeat: f32[T<=8, 4, 64] = repeat(%reshape)
    """
    return g.record(ops.repeat, x, name=name, n=n)


@method
def permute(g: StepBuilder, x: Node, *axes: Index, name: str | None = None) -> Node:
    """The dimensions in another order: axis i of the result is axis axes[i] of x. All must be named.

    >>> g.permute(q, 0, 2, 1)
    %permute: f32[T<=8, 16, 4] = permute(%q)
    """
    return g.record(ops.permute, x, name=name, axes=axes)


@method
def results(g: StepBuilder, node: Node) -> tuple[Node, ...]:
    """The node itself; of an op with several results, the nodes through which they are read.

    >>> g.results(x)
    (%x: f32[T<=8, 64] = input(),)
    """
    if not node.type.parts:
        return (node,)
    return tuple(g.record(ops.part, node, index=i) for i in range(len(node.type.parts)))
