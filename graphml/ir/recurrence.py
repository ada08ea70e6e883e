"""The language of recurrent layers: ops that keep a state of each sequence between steps.

Legend of shapes as in `language.py`. Knows which state belongs to which op; nothing of other layers.
"""

from __future__ import annotations

from graphml.ir.dtype import F32
from graphml.ir.node import Node
from graphml.ir.ops import layout, linear_attention, ngram, recurrent, ssm
from graphml.ir.shape import fixed, max_elements
from graphml.ir.step import StepBuilder


class RecurrentBuilder(StepBuilder):
    """Methods of recurrent ops. `layer` and, where a layer has several of a kind, `what` name the state."""

    def recurrent_state(self, layer: int, what: str, *row: int) -> Node:
        """A state of a layer, f32 [S, *row]; a sequence that begins at position 0 begins with zeros."""
        return self.state(f"cache.{layer}.{what}", F32, (self.n_sequences, *row))

    def ssm_conv(
        self,
        x: Node,
        weight: Node,
        bias: Node | None,
        layer: int,
        what: str = "conv",
        name: str | None = None,
    ) -> Node:
        """Causal depthwise convolution over each sequence: x [T, channels], weight [channels, d_conv]."""
        state = self.recurrent_state(layer, what, fixed(weight.shape[1]) - 1, fixed(x.shape[1]))
        extra = () if bias is None else (bias,)
        return self.make(
            recurrent.ssm_conv, state, x, weight, self.sequences, self.positions, *extra, name=name
        )

    def ssm_scan(
        self,
        x: Node,
        dt: Node,
        a: Node,
        b: Node,
        c: Node,
        d: Node,
        layer: int,
        d_state: int,
        what: str = "ssm",
        name: str | None = None,
    ) -> Node:
        """The state space of Mamba, [T, channels], of x [T, channels], B and C [T, n_group * d_state].

        a: [channels, d_state], or of Mamba 2 [n_head] or [n_head, 1]; dt [T, rows of a], before softplus;
        d: a factor of x for each row of a.
        """
        n, channels = fixed(a.shape[0]), fixed(x.shape[1])
        if len(a.shape) == 1:
            a = self.make(layout.reshape, a, name=None, tail=(n, 1), keep=0)
        if len(d.shape) != 1:
            d = self.make(layout.reshape, d, name=None, tail=(max_elements(d.shape),), keep=0)
        heads = 1 if a.shape == (channels, d_state) else n
        state = self.recurrent_state(layer, what, heads, d_state, channels // max(heads, 1))
        operands = (state, x, dt, a, b, c, d, self.sequences, self.positions)
        return self.make(ssm.ssm_scan, *operands, name=name)

    def gated_delta_net(
        self,
        q: Node,
        k: Node,
        v: Node,
        decay: Node,
        beta: Node,
        layer: int,
        scale: float,
        grouped: bool = False,
        name: str | None = None,
    ) -> Node:
        """Heads q and k [T, G, K] and v [T, N, V], decay [T, N, 1 or K], beta [T, N, 1] -> y [T, N, V].

        grouped: neighbouring heads of v share keys, else those that are G apart.
        """
        state = self._memory(layer, q, v)
        operands = (state, q, k, v, decay, beta, self.sequences, self.positions)
        return self.make(linear_attention.gated_delta_net, *operands, name=name, scale=scale, grouped=grouped)

    def linear_attention(
        self,
        q: Node,
        k: Node,
        v: Node,
        layer: int,
        gates: tuple[Node, ...] = (),
        name: str | None = None,
        **attributes: float,
    ) -> Node:
        """Heads q and k [T, N, K] and v [T, N, V] -> y [T, N, V]; gates and attributes as of the op."""
        operands = (self._memory(layer, q, v), q, k, v, self.sequences, self.positions, *gates)
        return self.make(linear_attention.linear_attention, *operands, name=name, **attributes)

    def ngram_rows(
        self,
        multipliers: tuple[int, ...],
        sizes: tuple[int, ...],
        offsets: tuple[int, ...],
        eos: int,
        name: str | None = None,
    ) -> Node:
        """Rows of a table by hashes of the last tokens of each sequence, i32 [T, number of sizes]."""
        state = self.state("cache.tokens", F32, (self.n_sequences, len(multipliers) - 1))
        operands = (state, self.tokens, self.sequences, self.positions)
        return self.make(
            ngram.ngram_rows, *operands, name=name,
            multipliers=multipliers, sizes=sizes, offsets=offsets, eos=eos,
        )  # fmt: skip

    def _memory(self, layer: int, q: Node, v: Node) -> Node:
        """A matrix for each head, from keys to values."""
        return self.recurrent_state(layer, "memory", *map(fixed, (*v.shape[1:], q.shape[2])))
