"""The language that architectures are written in: one typed method for each op.

The step's inputs stand in `step.py`, recurrent ops in `recurrence.py`, attention in `attending.py`.

Legend of shapes: T tokens of this step, O rows whose logits are wanted, S sequences, B cache blocks of a
sequence, C cache cells, N out, K in.
"""

from __future__ import annotations

from graphml.errors import ShapeError
from graphml.ir.attending import AttentionBuilder
from graphml.ir.builder import told_weights
from graphml.ir.dtype import F32, DType
from graphml.ir.node import Node
from graphml.ir.ops import elementwise, index, layout, linear, norm, position, reduce
from graphml.ir.shape import fixed


class Builder(AttentionBuilder):
    """Builds the graph of one step; see `StepBuilder` for its bounds."""

    # elementwise
    def add(self, a: Node, b: Node, name: str | None = None) -> Node:
        """A + b, b stretched."""
        return self.make(elementwise.add, a, b, name=name)

    def sub(self, a: Node, b: Node, name: str | None = None) -> Node:
        """A - b, b stretched."""
        return self.make(elementwise.sub, a, b, name=name)

    def mul(self, a: Node, b: Node, name: str | None = None) -> Node:
        """A * b, b stretched."""
        return self.make(elementwise.mul, a, b, name=name)

    def div(self, a: Node, b: Node, name: str | None = None) -> Node:
        """A / b, b stretched."""
        return self.make(elementwise.div, a, b, name=name)

    def scale(self, x: Node, factor: float, offset: float = 0.0, name: str | None = None) -> Node:
        """X * factor + offset."""
        return self.make(elementwise.scale, x, name=name, factor=factor, offset=offset)

    def clamp(self, x: Node, low: float, high: float, name: str | None = None) -> Node:
        """X limited to [low, high]."""
        return self.make(elementwise.clamp, x, name=name, low=low, high=high)

    def silu(self, x: Node, name: str | None = None) -> Node:
        """X * sigmoid(x)."""
        return self.make(elementwise.silu, x, name=name)

    def gelu(self, x: Node, name: str | None = None) -> Node:
        """GELU in its tanh form."""
        return self.make(elementwise.gelu, x, name=name)

    def gelu_erf(self, x: Node, name: str | None = None) -> Node:
        """GELU as defined, by the error function."""
        return self.make(elementwise.gelu_erf, x, name=name)

    def gelu_quick(self, x: Node, name: str | None = None) -> Node:
        """X * sigmoid(1.702 x)."""
        return self.make(elementwise.gelu_quick, x, name=name)

    def relu(self, x: Node, name: str | None = None) -> Node:
        """X where it is above 0, else 0."""
        return self.make(elementwise.relu, x, name=name)

    def exp(self, x: Node, name: str | None = None) -> Node:
        """e to the power of x."""
        return self.make(elementwise.exp, x, name=name)

    def softplus(self, x: Node, name: str | None = None) -> Node:
        """Log(1 + exp(x))."""
        return self.make(elementwise.softplus, x, name=name)

    def absolute(self, x: Node, name: str | None = None) -> Node:
        """X without its sign."""
        return self.make(elementwise.absolute, x, name=name)

    def sqrt(self, x: Node, name: str | None = None) -> Node:
        """Square root."""
        return self.make(elementwise.sqrt, x, name=name)

    def sqr(self, x: Node, name: str | None = None) -> Node:
        """X * x."""
        return self.make(elementwise.sqr, x, name=name)

    def sigmoid(self, x: Node, name: str | None = None) -> Node:
        """1 / (1 + exp(-x))."""
        return self.make(elementwise.sigmoid, x, name=name)

    def tanh(self, x: Node, name: str | None = None) -> Node:
        """Hyperbolic tangent."""
        return self.make(elementwise.tanh, x, name=name)

    # norms and reductions
    def rms_norm(self, x: Node, weight: Node | None, eps: float, name: str | None = None) -> Node:
        """Root-mean-square norm over the last dimension, times the weight."""
        y = self.make(norm.rms_norm, x, name=name if weight is None else None, eps=eps)
        return y if weight is None else self.mul(y, weight, name=name)

    def layer_norm(
        self, x: Node, weight: Node | None, bias: Node | None, eps: float, name: str | None = None
    ) -> Node:
        """Mean-and-variance norm over the last dimension, times the weight, plus the bias."""
        factors = [(self.mul, weight), (self.add, bias)]
        todo = [(apply, node) for apply, node in factors if node is not None]
        y = self.make(norm.layer_norm, x, name=None if todo else name, eps=eps)
        for i, (apply, node) in enumerate(todo, 1):
            y = apply(y, node, name=name if i == len(todo) else None)
        return y

    def l2_norm(self, x: Node, eps: float, name: str | None = None) -> Node:
        """X over its length along the last dimension, which counts as `eps` if it is shorter."""
        return self.make(norm.l2_norm, x, name=name, eps=eps)

    def softcap(self, x: Node, limit: float, name: str | None = None) -> Node:
        """Tanh(x / limit) * limit."""
        return self.scale(self.tanh(self.scale(x, 1.0 / limit)), limit, name=name)

    def softmax(self, x: Node, name: str | None = None) -> Node:
        """Softmax over the last dimension."""
        return self.make(reduce.softmax, x, name=name)

    def sum_rows(self, x: Node, name: str | None = None) -> Node:
        """Sum over the last dimension, which becomes 1."""
        return self.make(reduce.sum_rows, x, name=name)

    def mean_rows(self, x: Node, name: str | None = None) -> Node:
        """The mean of the wanted rows x [O, n] of each sequence, [S, n]; 0 for one that has none."""
        return self.make(reduce.mean_rows, x, self.wanted, self.sequences, self.lengths, name=name)

    # matrices
    def dequantize(self, weight: Node) -> Node:
        """The weight as f32; itself where it is f32."""
        if weight.dtype is F32:
            return weight
        return self.make(linear.dequantize, weight, name=f"{weight.name}.f32", from_dtype=weight.dtype.name)

    def mul_mat(self, weight: Node, x: Node, name: str | None = None) -> Node:
        """Weight [N, K] of any dtype and x [..., K] -> [..., N]."""
        return self.make(linear.mul_mat, self.dequantize(weight), x, name=name)

    def mul_mat_id(self, weight: Node, x: Node, ids: Node, name: str | None = None) -> Node:
        """Weight [E, N, K], x [T, K] or [T, used, K], ids [T, used] -> [T, used, N]."""
        return self.make(linear.mul_mat_id, self.dequantize(weight), x, ids, name=name)

    # position
    def rope_table(self, n_rot: int, factors: Node | None = None, **attributes: float) -> Node:
        """Cosines and sines of this step's positions, [T, n_rot / 2, 2]; attributes as of `rope_table`."""
        inputs = (self.positions,) if factors is None else (self.positions, factors)
        return self.make(position.rope_table, *inputs, name=None, n_rot=n_rot, **attributes)

    def position_scale(self, factor: float, step: int, offset: int = 0, name: str | None = None) -> Node:
        """1 + factor * log(1 + (position + offset) // step) of this step's tokens, [T, 1, 1]."""
        attributes = {"factor": factor, "step": step, "offset": offset}
        return self.make(position.position_scale, self.positions, name=name, **attributes)

    def rope(self, x: Node, table: Node, mode: str, name: str | None = None) -> Node:
        """Rotate x [T, head, d]: pairs of neighbours (`norm`) or of halves (`neox`)."""
        return self.make(position.rope, x, table, name=name, mode=mode)

    # layout and index
    def heads(self, x: Node, n_head: int, name: str | None = None) -> Node:
        """[T, n_head * d] -> [T, n_head, d]."""
        return self.reshape(x, n_head, fixed(x.shape[-1]) // max(n_head, 1), name=name)

    def reshape(self, x: Node, *tail: int, keep: int = 1, name: str | None = None) -> Node:
        """Everything after the first `keep` dimensions gets the shape `tail`."""
        return self.make(layout.reshape, x, name=name, tail=tail, keep=keep)

    def columns(self, x: Node, start: int, stop: int, name: str | None = None) -> Node:
        """Columns start to stop of the last dimension."""
        return self.make(layout.columns, x, name=name, start=start, stop=stop)

    def concat(self, a: Node, b: Node, name: str | None = None) -> Node:
        """A and b one after the other in the last dimension."""
        return self.make(layout.concat, a, b, name=name)

    def repeat(self, x: Node, n: int, name: str | None = None) -> Node:
        """[T, 1, d] -> [T, n, d]."""
        return self.make(layout.repeat, x, name=name, n=n)

    def permute(self, x: Node, *axes: int, name: str | None = None) -> Node:
        """The dimensions in another order."""
        return self.make(layout.permute, x, name=name, axes=axes)

    def rows(self, table: Node, indices: Node, name: str | None = None) -> Node:
        """Rows of a table of any dtype, as f32."""
        return self.make(index.get_rows, table, indices, name=name, from_dtype=table.dtype.name)

    def wanted_rows(self, x: Node) -> Node:
        """Of x [T, ...] the rows whose logits are wanted, [O, ...]: x itself where these are all."""
        return x if self.n_outputs == self.n_tokens else self.rows(x, self.wanted)

    def embed(self, table: Node, tokens: Node) -> Node:
        """Embeddings [T, d] of the tokens."""
        return self.rows(table, tokens, name="embedding")

    def top_k(self, x: Node, k: int, name: str | None = None) -> Node:
        """Indices of the k largest of the last dimension, largest first, i32."""
        return self.make(index.top_k, x, name=name, k=k)

    def best_groups(self, x: Node, n_group: int, n_group_used: int, name: str | None = None) -> Node:
        """X where its group is among the best, by its two largest elements; elsewhere minus infinity."""
        return self.make(index.best_groups, x, name=name, n_group=n_group, n_group_used=n_group_used)

    def column_numbers(self, like: Node, n: int, each: int = 1, name: str | None = None) -> Node:
        """0, 1, ... n - 1, divided by `each` and rounded down, for each row of another value: i32 [T, n]."""
        return self.make(index.column_numbers, like, name=name, n=n, each=each)

    def per_head(self, weight: Node, x: Node, name: str | None = None) -> Node:
        """Weight [head, N, K] and x [T, head, K] -> [T, head, N]: each head by a matrix of its own.

        Of a single head the weight may be [N, K], since files drop dimensions of 1.
        """
        if len(weight.shape) == 2:
            return self.mul_mat(weight, x, name=name)
        if weight.shape[0] != x.shape[1]:
            raise ShapeError(f"wanted a matrix for each head of {x.type}; got {told_weights([weight])}")
        heads = self.column_numbers(self.positions, fixed(x.shape[1]), name="head_numbers")
        return self.mul_mat_id(weight, x, heads, name=name)

    def gather(self, x: Node, ids: Node, name: str | None = None) -> Node:
        """X [T, n] at ids [T, k] -> [T, k]."""
        return self.make(index.gather, x, ids, name=name)


__all__ = ["Builder", "DType"]
