"""The language of attention: keys and values are written to a cache, queries read it.

Legend of shapes as in `language.py`. Knows which state belongs to which layer; nothing of what is around
attention in a layer.
"""

from __future__ import annotations

from math import prod
from typing import Any

from graphml.errors import GraphError, UsageError
from graphml.ir.node import Node
from graphml.ir.ops import attention as attention_ops
from graphml.ir.ops import index, layout, relative, sparse
from graphml.ir.recurrence import RecurrentBuilder
from graphml.ir.shape import Shape, fixed


class AttentionBuilder(RecurrentBuilder):
    """Methods of attention. `layer` names the states of its keys and values."""

    def attend(
        self,
        q: Node,
        k: Node | None,
        v: Node | None,
        layer: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        max_bias: float = 0.0,
        sinks: Node | None = None,
        causal: bool | None = None,
        chunk: int = 0,
        selected: Node | None = None,
        span: int = 1,
    ) -> Node:
        """Write k and v [T, head_kv, d] to the cache, attend with q [T, head, d]; gives [T, head * d_v].

        v None: the values are the keys, kept once. k None: nothing is written, the keys and values are those
        that attention of `layer` has kept before. causal: no token sees later ones (None: as the builder
        has it); else it sees all that its sequence holds after this step. window: how many tokens are seen,
        the token itself the last; unless causal, half of them lie on either side of it. chunk: a token sees
        its own so many alone, as in Llama 4. selected: by `select`, the spans of `span` positions that it
        sees.
        """
        causal = self.causal if causal is None else causal
        if k is not None:
            k_cache = self._cache(f"{self.caches}.{layer}.k", k)
            self.kept[layer] = k_cache, k_cache if v is None else self._cache(f"{self.caches}.{layer}.v", v)
        if layer not in self.kept:
            raise GraphError(f"wanted keys and values of layer {layer}, which has kept none yet")
        k_cache, v_cache = self.kept[layer]
        places = self.positions, self.sequences, self.block_table
        extra = () if sinks is None else (sinks,)
        shared: dict[str, Any] = {
            "scale": scale, "block_size": self.block_size, "cache_dtype": self.cache_dtype.name
        }  # fmt: skip
        if selected is not None:
            shared["span"] = span
            op = sparse.selected_attention
            return self.flatten(self.make(op, q, k_cache, v_cache, *places, selected, *extra, **shared))
        ahead = () if causal else (self.lengths,)
        shared |= {"window": window, "chunk": chunk, "softcap": softcap, "max_bias": max_bias}
        y = self.make(
            attention_ops.attention,
            *(q, k_cache, v_cache, *places, *extra, *ahead),
            causal=causal,
            **shared,
        )
        return self.flatten(y)

    def select(
        self, q: Node, k: Node, layer: int, n: int, span: int = 1, local: int = 0, weights: Node | None = None
    ) -> Node:
        """Write k [T, 1, d] to the cache and name the n best spans of positions for q [T, head, d].

        A span is worth its best position, the last `local` ones are always among them. With weights
        [T, head] heads choose together, [T, 1, n], else each for itself, [T, head, n]; -1 where there are
        fewer.
        """
        k_cache = self._cache(f"{self.caches}.{layer}.index", k)
        places = self.positions, self.sequences, self.block_table
        extra = () if weights is None else (weights,)
        return self.make(
            sparse.select_spans,
            *(q, k_cache, *places, *extra),
            name="selected",
            n=n,
            span=span,
            local=local,
            block_size=self.block_size,
            cache_dtype=self.cache_dtype.name,
        )

    def attend_relative(self, q: Node, k: Node, v: Node, layer: int, bias: Node, scale: float = 1.0) -> Node:
        """As `attend`, a bias [buckets, head] being added to scores by distance, as in T5."""
        caches = self._cache(f"{self.caches}.{layer}.k", k), self._cache(f"{self.caches}.{layer}.v", v)
        ahead = () if self.causal else (self.lengths,)
        y = self.make(
            relative.relative_attention,
            *(q, *caches, self.positions, self.sequences, self.block_table, bias, *ahead),
            scale=scale,
            block_size=self.block_size,
            causal=self.causal,
            cache_dtype=self.cache_dtype.name,
        )
        return self.flatten(y)

    def keep_source(self, k: Node, v: Node, layer: int) -> None:
        """Write k and v [T, head_kv, d] of a source text, to which the decoder's `layer` attends."""
        self._cache(f"source.{layer}.k", k)
        self._cache(f"source.{layer}.v", v)

    def attend_source(self, q: Node, layer: int, n_head_kv: int, scale: float) -> Node:
        """Attend with q [T, head, d] to the whole source text of its sequence; gives [T, head * d].

        The keys and values [n_head_kv, d] are those that the encoder's graph has kept by `keep_source`. A
        sequence without a source text gets zeros.
        """
        shape = self.n_cells, n_head_kv, q.shape[-1]
        y = self.make(
            attention_ops.attention,
            q,
            self._cache_state(f"source.{layer}.k", shape),
            self._cache_state(f"source.{layer}.v", shape),
            *(self.positions, self.sequences, self.source_table, self.source_lengths),
            name="cross_attention",
            scale=scale,
            block_size=self.block_size,
            causal=False,
            cache_dtype=self.cache_dtype.name,
        )
        return self.flatten(y)

    def flatten(self, x: Node, name: str | None = None) -> Node:
        """[T, a, b] -> [T, a * b]."""
        return self.make(layout.reshape, x, name=name, tail=(prod(map(fixed, x.shape[1:])),), keep=1)

    def _cache(self, name: str, x: Node) -> Node:
        state = self._cache_state(name, (self.n_cells, *x.shape[1:]))
        kind = self.cache_dtype.name
        return self.make(index.set_rows, state, x, self.cells, name="cache_write", to_dtype=kind)

    def _cache_state(self, name: str, shape: Shape) -> Node:
        kind = self.cache_dtype
        if fixed(shape[-1]) % kind.block_elements:
            raise UsageError(
                f"kv: {kind.name} keeps blocks of {kind.block_elements} elements; {name} has heads of "
                f"{shape[-1]}: choose f16, bf16 or f32"
            )
        return self.state(name, kind, shape)
