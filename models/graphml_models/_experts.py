"""Mixture of experts: products with the chosen experts' matrices and their weighted sum.

T tokens, U experts used per token, E experts, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphml.errors import ArchitectureError
from graphml.ir.builder import told_weights
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer
from graphml_models._ffn import Product

LIMITS, SHARED_LIMITS = "swiglu_clamp_exp", "swiglu_clamp_shexp"


def swiglu(g: Builder, gate: Node, up: Node) -> Node:
    """SiLU(gate) * up."""
    return g.mul(g.silu(gate), up)


def clamped_swiglu(limit: float) -> Product:
    """SwiGLU of gates up to `limit` and of what they let through within it on both sides; 0: no limit."""
    if limit <= 0.0:
        return swiglu
    low = float("-inf")
    return lambda g, gate, up: swiglu(g, g.clamp(gate, low, limit), g.clamp(up, -limit, limit))


@dataclass(frozen=True)
class Chosen:
    """The experts of each token, i32 [T, U], and the weights of their outputs, f32 [T, U]."""

    g: Builder
    layer: Layer
    ids_TU: Node
    weights_TU: Node
    scaled: bool = False  # see `Tensors.scale`
    n_expert: int = 0  # where it is not as many as the router has scores for

    def linear(self, x: Node, name: str) -> Node:
        """X [T, D] or [T, U, D] times the chosen matrices and `.scale`, plus `.bias`: [T, U, out]."""
        y = self.g.mul_mat_id(self._of_each_expert(name, self.layer[name]), x, self.ids_TU)
        scale, bias = self.layer.scale(name, self.scaled), self.layer.get(f"{name}.bias")
        if scale is not None:
            self._of_each_expert(f"{name}.scale", scale)
            scale_E1 = self.g.reshape(scale, fixed(scale.shape[0]), 1, keep=0)
            y = self.g.mul(y, self.g.rows(scale_E1, self.ids_TU))
        if bias is None:
            return y
        return self.g.add(y, self.g.rows(self._of_each_expert(f"{name}.bias", bias), self.ids_TU))

    def _of_each_expert(self, name: str, tensor: Node) -> Node:
        """The tensor, if it has a part for each of the experts that the ids choose from."""
        n_expert = self.n_expert or self.ids_TU.inputs[0].shape[-1]  # scores of which the ids are the largest
        if tensor.shape[0] != n_expert:
            raise ArchitectureError(
                f"tensor blk.{self.layer.index}.{name}: wanted {n_expert} experts, as many as are routed to; "
                f"got {told_weights([tensor, self.ids_TU])}"
            )
        return tensor

    def combine(self, y_TUD: Node) -> Node:
        """The weighted sum over the experts, [T, D]."""
        used = fixed(self.ids_TU.shape[1])
        return self.total(self.g.mul(y_TUD, self.g.reshape(self.weights_TU, used, 1)))

    def total(self, y_TUD: Node) -> Node:
        """The sum over the experts, [T, D]."""
        g = self.g
        return g.reshape(g.sum_rows(g.permute(y_TUD, 0, 2, 1)), fixed(y_TUD.shape[2]))

    def gated(self, x_TD: Node, product: Product = swiglu, kind: str = "exps") -> Node:
        """Each expert's down(product(gate(x), up(x))), [T, U, D]; gate and up may be one tensor.

        kind: what the names of the tensors end in.
        """
        g = self.g
        if self.layer.get(f"ffn_gate_up_{kind}"):
            both_TUF = self.linear(x_TD, f"ffn_gate_up_{kind}")
            half, odd = divmod(fixed(both_TUF.shape[-1]), 2)
            if odd:
                raise ArchitectureError(
                    f"tensor blk.{self.layer.index}.ffn_gate_up_{kind}.weight: wanted as many rows for gates "
                    f"as for what they let through; got {both_TUF.shape[-1]} together"
                )
            gate_TUF, up_TUF = g.columns(both_TUF, 0, half, "gate"), g.columns(both_TUF, half, 2 * half, "up")
        else:
            gate_TUF, up_TUF = self.linear(x_TD, f"ffn_gate_{kind}"), self.linear(x_TD, f"ffn_up_{kind}")
        return self.linear(product(g, gate_TUF, up_TUF), f"ffn_down_{kind}")


def route(
    g: Builder,
    layer: Layer,
    probabilities_TE: Node,
    n_used: int,
    normalise: bool = True,
    scaled: bool = False,
) -> Chosen:
    """The `n_used` most probable experts of each token, their weights summing to 1 if `normalise`."""
    ids_TU = g.top_k(probabilities_TE, n_used, "experts")
    weights_TU = g.gather(probabilities_TE, ids_TU, "expert_weights")
    return Chosen(g, layer, ids_TU, normalised(g, weights_TU) if normalise else weights_TU, scaled)


def normalised(g: Builder, weights_TU: Node) -> Node:
    """Each token's weights over their sum, held above half precision's smallest normal number as in ggml."""
    return g.div(weights_TU, g.clamp(g.sum_rows(weights_TU), 6.103515625e-5, float("inf")))


def swiglu_experts(
    g: Builder, layer: Layer, x_TD: Node, n_used: int, normalise: bool = True, scaled: bool = False
) -> Node:
    """SwiGLU experts weighted by the softmax of the router, [T, D].

    normalise: the weights of a token's experts sum to 1; scaled: see `Tensors.scale`.
    """
    probabilities_TE = g.softmax(layer.linear(x_TD, "ffn_gate_inp", "router"))
    chosen = route(g, layer, probabilities_TE, n_used, normalise, scaled)
    return chosen.combine(chosen.gated(x_TD))


def read_limits(keys: Keys, n_layer: int, key: str = LIMITS) -> tuple[float, ...]:
    """For `clamped_swiglu` in each layer's experts, or under another key in what all tokens share."""
    length = n_layer if keys.length(key) in (None, n_layer) else keys.integer("block_count")
    return keys.numbers(key, length, 0.0)[:n_layer]


def read_shared_limits(keys: Keys, n_layer: int) -> tuple[float, ...]:
    """The limits of what all tokens share: the experts', unless the file says others."""
    return read_limits(keys, n_layer, SHARED_LIMITS if keys.has(SHARED_LIMITS) else LIMITS)
