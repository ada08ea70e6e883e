"""Methods over the last dimension: norms, Hadamard transforms, softmax, sums, extremes; means over rows."""

from __future__ import annotations

from graphml.ir.argument_kinds import Count, Index, NonNegative
from graphml.ir.arguments import method
from graphml.ir.node import Node
from graphml.ir.ops import elementwise, reduce, text_rows
from graphml.ir.ops import norm as ops
from graphml.ir.ops import walsh_hadamard as transform
from graphml.ir.step import StepBuilder


@method
def rms_norm(g: StepBuilder, x: Node, weight: Node | None, eps: NonNegative, name: str | None = None) -> Node:
    """x / sqrt(mean(x * x) + eps) over the last dimension, times the weight (arXiv:1910.07467).

    weight: f32, of the last dimension of x, or None for none.

    >>> g.rms_norm(x, bias, 1e-5)
    %mul: f32[T<=8, 64] = mul(%rms_norm, %bias)
    """
    y = g.record(ops.rms_norm, x, name=name if weight is None else None, eps=eps)
    return y if weight is None else g.record(elementwise.mul, y, weight, name=name)


@method
def layer_norm(
    g: StepBuilder, x: Node, weight: Node | None, bias: Node | None, eps: NonNegative, name: str | None = None
) -> Node:
    """(x - mean) / sqrt(variance + eps) over the last dimension, times weight, plus bias (arXiv:1607.06450).

    weight, bias: f32, of the last dimension of x, or None for none.

    >>> g.layer_norm(x, bias, None, 1e-5)
    %mul: f32[T<=8, 64] = mul(%layer_norm, %bias)
    """
    factors = [(elementwise.mul, weight), (elementwise.add, bias)]
    todo = [(op, node) for op, node in factors if node is not None]
    y = g.record(ops.layer_norm, x, name=None if todo else name, eps=eps)
    for i, (op, node) in enumerate(todo, 1):
        y = g.record(op, y, node, name=name if i == len(todo) else None)
    return y


@method
def l2_norm(g: StepBuilder, x: Node, eps: NonNegative, name: str | None = None) -> Node:
    """x / max(its length, eps) over the last dimension.

    >>> g.l2_norm(q, 1e-6)
    %l2_norm: f32[T<=8, 4, 16] = l2_norm(%q)
    """
    return g.record(ops.l2_norm, x, name=name, eps=eps)


@method
def walsh_hadamard(g: StepBuilder, x: Node, block: Count, name: str | None = None) -> Node:
    """Each block of the last dimension times the orthonormal Walsh-Hadamard matrix, its own inverse.

    block: a power of two that divides the last dimension. Caches of few bits are spread so
    (arXiv:2404.00456).

    >>> g.walsh_hadamard(q, 16)
    %walsh_hadamard: f32[T<=8, 4, 16] = walsh_hadamard(%q)
    """
    return g.record(transform.walsh_hadamard, x, name=name, block=block)


@method
def softmax(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """exp(x) over its sum along the last dimension, f32 of the same shape.

    >>> g.softmax(x)
    %softmax: f32[T<=8, 64] = softmax(%x)
    """
    return g.record(reduce.softmax, x, name=name)


@method
def sum_rows(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """The sum over the last dimension, which becomes 1.

    >>> g.sum_rows(x)
    %sum_rows: f32[T<=8, 1] = sum_rows(%x)
    """
    return g.record(reduce.sum_rows, x, name=name)


@method
def max_rows(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """The largest number of the last dimension, which becomes 1; NaN where one of them is NaN.

    >>> g.max_rows(x)
    %max_rows: f32[T<=8, 1] = max_rows(%x)
    """
    return g.record(reduce.max_rows, x, name=name)


@method
def min_rows(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """The smallest number of the last dimension, which becomes 1; NaN where one of them is NaN.

    >>> g.min_rows(x)
    %min_rows: f32[T<=8, 1] = min_rows(%x)
    """
    return g.record(reduce.min_rows, x, name=name)


@method
def cumsum(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """Running sums over the last dimension, each with its own element, f32 of the same shape.

    Not over tokens: a step has only some tokens of a sequence, so a sum over all before would be a state
    (`linear_attention` and the other methods with a state keep one).

    >>> g.cumsum(g.softmax(x))
    %cumsum: f32[T<=8, 64] = cumsum(%softmax)
    """
    return g.record(reduce.cumsum, x, name=name)


@method
def mean_rows(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """The mean of the output rows x [O, n] of each sequence, [S, n]; 0 for a sequence that has none.

    >>> g.mean_rows(g.select_output_rows(x))
    %mean_rows: f32[S<=1, 64] = mean_rows(%get_rows, %output_rows, %sequences, %lengths)
    """
    return g.record(reduce.mean_rows, x, g.output_rows, g.sequences, g.lengths, name=name)


@method
def text_means(g: StepBuilder, x: Node, name: str | None = None) -> Node:
    """For each token the mean of x f32 [T, n] over the tokens of its text in this step, [T, n].

    For texts that are read at once (`CAUSAL = False`).

    >>> g.text_means(x)
    %text_means: f32[T<=8, 64] = text_means(%x, %sequences)
    """
    return g.record(text_rows.text_means, x, g.sequences, name=name)


@method
def neighbours(g: StepBuilder, x: Node, reach: Index, name: str | None = None) -> Node:
    """For each token the rows of x f32 [T, n] up to `reach` before and behind it, [T, n, 2 * reach + 1].

    Zeros beyond both ends of a text. For convolutions over texts that are read at once (`CAUSAL = False`).

    >>> g.neighbours(x, 1)
    %neighbours: f32[T<=8, 64, 3] = neighbours(%x, %sequences, %positions)
    """
    return g.record(text_rows.neighbours, x, g.sequences, g.positions, name=name, reach=reach)
