"""Methods of matrices. A weight is [out, in], as GGUF stores it, and of any dtype."""

from __future__ import annotations

from graphml.errors import ShapeError
from graphml.ir.arguments import method
from graphml.ir.builder import told_weights
from graphml.ir.dtype import F32
from graphml.ir.methods.index import column_numbers
from graphml.ir.methods.layout import reshape
from graphml.ir.node import Node
from graphml.ir.ops import linear as ops
from graphml.ir.shape import Symbol, fixed
from graphml.ir.step import StepBuilder


@method
def dequantize(g: StepBuilder, weight: Node) -> Node:
    """The weight as f32; itself if it is f32.

    >>> g.dequantize(g.weight("m", dtype("q8_0"), (96, 64)))
    %m.f32: f32[96, 64] = dequantize(%m)
    """
    return _plain(g, weight)


@method
def mul_mat(g: StepBuilder, weight: Node, x: Node, name: str | None = None) -> Node:
    """x @ weight.T: weight [N, K] of any dtype, x f32 [..., K] -> f32 [..., N].

    weight [..., N, K] with x [..., M, K] of the same leading dimensions: a product for each of them, f32
    [..., M, N]. So both may be computed for each token: [T, N, K] and [T, M, K] -> [T, M, N]. One vector for
    each token, [T, K], is [T, 1, K]. Other matrices are transposed first: `g.permute(a, 0, 2, 1)`.

    A `ShapeError` if K or a leading dimension differs, or for a weight [T, K]: the rows of a step are no
    matrix. `weights.linear(x, name)` reads the matrix from the file, and its bias.

    >>> g.mul_mat(w, x)
    %mul_mat: f32[T<=8, 96] = mul_mat(%w, %x)
    >>> g.mul_mat(q, g.heads(x, 4))
    %mul_mat_batch: f32[T<=8, 4, 4] = mul_mat_batch(%q, %reshape)
    """
    if len(weight.shape) > 2:
        return g.record(ops.mul_mat_batch, _plain(g, weight), x, name=name)
    if weight.shape and isinstance(weight.shape[0], Symbol):
        raise ShapeError(f"[g.mul_mat] wanted weight [out, in], then x; got {weight.type} and {x.type}")
    return g.record(ops.mul_mat, _plain(g, weight), x, name=name)


@method
def outer(g: StepBuilder, a: Node, b: Node, name: str | None = None) -> Node:
    """The outer product of each row: a f32 [..., N] and b f32 [..., M] -> f32 [..., N, M].

    Element [..., i, j] is a[..., i] * b[..., j]. A `ShapeError` if the leading dimensions differ, or if there
    are none.

    >>> g.outer(g.columns(x, 0, 4), x)
    %outer: f32[T<=8, 4, 64] = mul_mat_batch(%reshape_1, %reshape)
    """
    if len(a.shape) < 2 or a.shape[:-1] != b.shape[:-1]:
        raise ShapeError(
            f"[g.outer] wanted a [..., n] and b [..., m] with the same leading dimensions, one or more; "
            f"got {a.type} and {b.type}"
        )
    column, row = (reshape(g, x, *map(fixed, x.shape[1:]), 1) for x in (a, b))
    return g.record(ops.mul_mat_batch, row, column, name=name or "outer")


@method
def mul_mat_id(g: StepBuilder, weight: Node, x: Node, ids: Node, name: str | None = None) -> Node:
    """Mixture-of-experts product: each token times the matrices of its ids, f32 [T, used, N].

    weight [E, N, K] of any dtype; x f32 [T, K], or [T, used, K] with a row for each id; ids i32 [T, used].
    Zeros for an id outside 0 to E - 1.

    >>> g.mul_mat_id(experts, x, g.top_k(x, 2))
    %mul_mat_id: f32[T<=8, 2, 96] = mul_mat_id(%experts, %x, %top_k)
    """
    return g.record(ops.mul_mat_id, _plain(g, weight), x, ids, name=name)


@method
def per_head(g: StepBuilder, weight: Node, x: Node, name: str | None = None) -> Node:
    """Each head times a matrix of its own: weight [head, N, K] of any dtype, x [T, head, K] -> [T, head, N].

    With a single head the weight may be [N, K], since files drop dimensions of 1.

    >>> g.per_head(g.weight("m", F32, (4, 8, 16)), q)
    %mul_mat_id: f32[T<=8, 4, 8] = mul_mat_id(%m, %q, %head_numbers)
    """
    if len(weight.shape) == 2:
        return mul_mat(g, weight, x, name=name)
    if weight.shape[0] != x.shape[1]:
        got = told_weights([weight])
        raise ShapeError(f"[g.per_head] wanted a matrix for each head of {x.type}; got {got}")
    heads = column_numbers(g, g.positions, fixed(x.shape[1]), name="head_numbers")
    return mul_mat_id(g, weight, x, heads, name=name)


def _plain(g: StepBuilder, weight: Node) -> Node:
    if weight.dtype is F32:
        return weight
    return g.record(ops.dequantize, weight, name=f"{weight.name}.f32", from_dtype=weight.dtype.name)
