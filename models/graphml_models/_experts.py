"""Mixture of experts: products with the chosen experts' matrices and their weighted sum.

T tokens, U experts used per token, E experts, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphml.engine.architecture import Layer
from graphml.errors import ArchitectureError
from graphml.ir.builder import told_weights
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed


@dataclass(frozen=True)
class Chosen:
    """The experts of each token, i32 [T, U], and the weights of their outputs, f32 [T, U]."""

    g: Builder
    layer: Layer
    ids_TU: Node
    weights_TU: Node
    scaled: bool = False  # see `Tensors.scale`

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
        n_expert = self.ids_TU.inputs[0].shape[-1]  # of the scores of which the ids are the largest
        if tensor.shape[0] != n_expert:
            raise ArchitectureError(
                f"tensor blk.{self.layer.index}.{name}: wanted {n_expert} experts, as many as are routed to; "
                f"got {told_weights([tensor, self.ids_TU])}"
            )
        return tensor

    def combine(self, y_TUD: Node) -> Node:
        """The weighted sum over the experts, [T, D]."""
        g, used, width = self.g, fixed(self.ids_TU.shape[1]), fixed(y_TUD.shape[2])
        weighted = g.mul(y_TUD, g.reshape(self.weights_TU, used, 1))
        return g.reshape(g.sum_rows(g.permute(weighted, 0, 2, 1)), width)


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
    gate_TUF, up_TUF = chosen.linear(x_TD, "ffn_gate_exps"), chosen.linear(x_TD, "ffn_up_exps")
    return chosen.combine(chosen.linear(g.mul(g.silu(gate_TUF), up_TUF), "ffn_down_exps"))
