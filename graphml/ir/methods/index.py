"""Methods that read by index or compute indices."""

from __future__ import annotations

from graphml.ir.argument_kinds import Count
from graphml.ir.arguments import method
from graphml.ir.methods import elementwise
from graphml.ir.methods.layout import reshape
from graphml.ir.node import Node
from graphml.ir.ops import index as ops
from graphml.ir.plain_states import is_of_sequences, is_unchanged
from graphml.ir.state_order import state_of
from graphml.ir.step import StepBuilder


@method
def rows(g: StepBuilder, table: Node, indices: Node, name: str | None = None) -> Node:
    """Rows of a table [n, ...] of any dtype by indices i32 [T] or [T, k]: f32 [T, (k,) ...].

    Zeros for an index outside 0 to n - 1.

    Of a state [S, ...] by g.sequences, each token's row of it as it was before the step: zeros at position 0,
    where a text begins, whatever an earlier text has left there.

    >>> g.rows(w, g.tokens)
    %get_rows: f32[T<=8, 64] = get_rows(%w, %tokens)
    """
    state = state_of(table)
    if state is None or not is_of_sequences(state) or not is_unchanged(table):
        return _rows(g, table, indices, name)
    before = _rows(g, table, indices)
    ones = (1,) * (len(before.shape) - 1)
    position_T1 = reshape(g, elementwise.cast(g, g.positions, "f32"), *ones)
    return elementwise.where(g, position_T1, before, g.constant(0.0), name=name)


@method
def select_output_rows(g: StepBuilder, x: Node) -> Node:
    """The output rows of x f32 [T, ...], [O, ...], whose logits are computed; x itself if these are all.

    >>> g.select_output_rows(x)
    %get_rows: f32[O<=4, 64] = get_rows(%x, %output_rows)
    """
    return x if g.n_outputs == g.n_tokens else _rows(g, x, g.output_rows)


@method
def embed(g: StepBuilder, table: Node, tokens: Node) -> Node:
    """Embeddings f32 [T, D] of the tokens i32 [T]: rows of a table [n_vocab, D] of any dtype, as by `rows`.

    >>> g.embed(w, g.tokens)
    %embedding: f32[T<=8, 64] = get_rows(%w, %tokens)
    """
    return _rows(g, table, tokens, "embedding")


@method
def top_k(g: StepBuilder, x: Node, k: Count, name: str | None = None) -> Node:
    """Indices of the k largest of the last dimension, i32 [..., k], largest first, equals by index.

    >>> g.top_k(x, 2)
    %top_k: i32[T<=8, 2] = top_k(%x)
    """
    return g.record(ops.top_k, x, name=name, k=k)


@method
def top_k_groups(
    g: StepBuilder, x: Node, n_group: Count, n_group_used: Count, name: str | None = None
) -> Node:
    """x within the top n_group_used groups, else minus infinity (DeepSeek-V3, arXiv:2412.19437).

    The last dimension is n_group equal groups; the score of a group is the sum of its two largest elements.

    >>> g.top_k_groups(x, 8, 4)
    %top_k_groups: f32[T<=8, 64] = top_k_groups(%x)
    """
    return g.record(ops.top_k_groups, x, name=name, n_group=n_group, n_group_used=n_group_used)


@method
def column_numbers(g: StepBuilder, like: Node, n: Count, each: Count = 1, name: str | None = None) -> Node:
    """0, 1, ... n - 1, divided by `each` and rounded down, for each row of `like`: i32 [T, n].

    >>> g.column_numbers(x, 4)
    %column_numbers: i32[T<=8, 4] = column_numbers(%x)
    """
    return g.record(ops.column_numbers, like, name=name, n=n, each=each)


@method
def gather(g: StepBuilder, x: Node, ids: Node, name: str | None = None) -> Node:
    """x [T, n] at ids i32 [T, k]: [T, k]. 0 for an id outside 0 to n - 1.

    >>> g.gather(x, g.top_k(x, 2))
    %gather: f32[T<=8, 2] = gather(%x, %top_k)
    """
    return g.record(ops.gather, x, ids, name=name)


def _rows(g: StepBuilder, table: Node, indices: Node, name: str | None = None) -> Node:
    return g.record(ops.get_rows, table, indices, name=name, from_dtype=table.dtype.name)
