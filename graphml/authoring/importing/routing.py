"""The text of experts in an imported file: the plain SwiGLU after a softmax, or a function with its routing.

Knows the numbers of recognised experts and config.json's fields; nothing of graphs.
"""

from __future__ import annotations

from graphml.authoring.importing.expressions import Expression
from graphml.authoring.importing.numbers import Fields, literal, near
from graphml.loading.huggingface.config_names import SIZES

SCALE = "expert_weights_scale"
GROUPS = ("expert_group_count", "expert_group_used_count")


def is_plain(of: Expression) -> bool:
    """Whether they are SwiGLU experts after a softmax, whose choice has no bias, groups or factor."""
    numbers = of.numbers
    return (
        numbers["activation"] == "silu"
        and not numbers["sigmoid"]
        and numbers["scale"] == 1.0
        and numbers["groups"][0] < 2
        and "bias" not in of.weights
    )


def experts_function(of: Expression) -> str:
    """The function `experts` of a file."""
    activation = of.numbers["activation"]
    product = "" if activation == "silu" else f", lambda g, gate, up: g.mul(g.{activation}(gate), up)"
    lines = [
        "def experts(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:",
        '    """The best experts of each token, [T, D]."""',
        "    chosen = choose(g, config.routing, layer, x_TD)",
        f"    return chosen.combine(chosen.gated(x_TD{product}))",
    ]
    return "\n".join(lines)


def add_routing(fields: Fields, of: Expression) -> None:
    """The field `routing` of the configuration, and the keys that it is read from."""
    numbers, config = of.numbers, fields.config
    fields.add("routing", "Routing", "Routing.read(keys)")
    fields.add_key("expert_gating_func", 2 if numbers["sigmoid"] else 1)
    normalise = "norm_topk_prob" if config.get("norm_topk_prob") is numbers["normalise"] else ""
    fields.add_key(
        "expert_weights_norm", numbers["normalise"], f'config.flag("{normalise}")' if normalise else ""
    )
    configured = config.get("routed_scaling_factor")
    known = isinstance(configured, int | float) and near(float(configured), numbers["scale"])
    if known or numbers["scale"] != 1.0:
        scale = f'config.number("{SCALE}")' if known else literal(numbers["scale"])
        fields.add_key(SCALE, numbers["scale"], scale)
    for key, value in zip(GROUPS, numbers["groups"], strict=True):
        field_known = config.get(SIZES[key][0]) in ((value,) if value > 1 else (1,))
        if field_known or numbers["groups"][0] > 1:
            fields.add_key(key, value, f'config.size("{key}")' if field_known else "")
