"""Feed-forward blocks. T tokens, D model width, F hidden width."""

from __future__ import annotations

from collections.abc import Callable

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Layer

Activation = Callable[[Builder, Node], Node]  # such as Builder.silu
Product = Callable[[Builder, Node, Node], Node]  # of gates and what they let through


def gated_ffn(
    g: Builder,
    layer: Layer,
    x_TD: Node,
    activation: Activation = Builder.silu,
    suffix: str = "",
    scaled: bool = False,
    product: Product | None = None,
) -> Node:
    """down(activation(gate(x)) * up(x)), SwiGLU by default (Shazeer 2020, arXiv:2002.05202).

    suffix: of the tensors' names, `_shexp` for shared experts; scaled: see `Tensors.scale`;
    product: of gate and up, where it is no activation of the gate times up.
    """

    def linear(h: Node, name: str) -> Node:
        return layer.linear(h, f"ffn_{name}{suffix}", f"{name}{suffix}", scale_last=True, scaled=scaled)

    gate_TF, up_TF = linear(x_TD, "gate"), linear(x_TD, "up")
    if product is not None:
        return linear(product(g, gate_TF, up_TF), "down")
    name = "swiglu" if activation is Builder.silu else "gated"
    return linear(g.mul(activation(g, gate_TF), up_TF, f"{name}{suffix}"), "down")


def plain_ffn(
    g: Builder, layer: Layer, x_TD: Node, activation: Activation, suffix: str = "", scaled: bool = False
) -> Node:
    """down(activation(up(x))); suffix, scaled: as of `gated_ffn`."""

    def linear(h: Node, name: str) -> Node:
        return layer.linear(h, f"ffn_{name}{suffix}", f"{name}{suffix}", scale_last=True, scaled=scaled)

    return linear(activation(g, linear(x_TD, "up")), "down")


def relu_squared(g: Builder, x: Node) -> Node:
    """relu(x) squared (So et al. 2021, arXiv:2109.08668)."""
    return g.sqr(g.relu(x))


def halved_ffn(
    g: Builder, layer: Layer, x_TD: Node, activation: Activation = Builder.silu, suffix: str = ""
) -> Node:
    """As `gated_ffn`, the gate being the first half of what `ffn_up` gives."""
    both = layer.linear(x_TD, f"ffn_up{suffix}", f"gate_up{suffix}", scale_last=True, scaled=False)
    width, odd = divmod(fixed(both.shape[-1]), 2)
    if odd:
        raise ArchitectureError(
            f"tensor blk.{layer.index}.ffn_up{suffix}.weight: wanted as many rows for gates as for what "
            f"they let through; got {both.shape[-1]} together"
        )
    gate_TF = g.columns(both, 0, width, f"gate{suffix}")
    up_TF = g.columns(both, width, 2 * width, f"up{suffix}")
    product = "swiglu" if activation is Builder.silu else "gated"
    h_TF = g.mul(activation(g, gate_TF), up_TF, f"{product}{suffix}")
    return layer.linear(h_TF, f"ffn_down{suffix}", f"down{suffix}", scale_last=True, scaled=False)
