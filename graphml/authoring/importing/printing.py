"""Expressions as lines of Python: names of values with shape suffixes, short ones within others.

Knows the builder's methods; nothing of files or config.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from graphml.authoring.importing.expressions import Expression
from graphml.authoring.importing.naming import Named, users
from graphml.authoring.importing.numbers import Fields, literal, near
from graphml.errors import ArchitectureError
from graphml.loading.huggingface.config_names import SIZES

SCALE = "expert_weights_scale"
MOST_FACTORS = 64  # constants in a line
GROUPS = ("expert_group_count", "expert_group_used_count")


def is_plain(of: Expression) -> bool:
    """Whether they are SwiGLU experts after a softmax, whose choice has no bias, groups or factor."""
    numbers = of.numbers
    return (
        numbers["activation"] == "silu"
        and not numbers["limit"]
        and not numbers["in_turns"]
        and not numbers["before"]
        and not numbers["sigmoid"]
        and not numbers["of_scores"]
        and numbers["scale"] == 1.0
        and numbers["groups"][0] < 2
        and "bias" not in of.weights
    )


def experts_function(of: Expression) -> str:
    """The function `experts` of a file."""
    numbers, ids = of.numbers, ""
    lines = [
        "def experts(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:",
        '    """The best experts of each token, [T, D]."""',
    ]
    if numbers["of_scores"]:
        scores = 'layer.linear(x_TD, "ffn_gate_inp")'
        scores = f'g.add({scores}, layer["exp_probs_b.bias"])' if "bias" in of.weights else scores
        lines.append(f"    ids_TU = g.top_k({scores}, config.routing.n_used)")
        ids = ", ids_TU"
    lines.append(f"    chosen = choose(g, config.routing, layer, x_TD{ids})")
    gate, up = "gate", "up"
    if numbers["before"]:
        lines.append("    weights_TU1 = g.reshape(chosen.weights_TU, config.routing.n_used, 1)")
        gate, up = "g.mul(gate, weights_TU1)", "g.mul(up, weights_TU1)"
    if limit := numbers["limit"]:
        gate, up = f'g.clamp({gate}, float("-inf"), {limit})', f"g.clamp({up}, {-limit}, {limit})"
    if numbers["activation"] == "gelu_quick":
        up = f"g.scale({up}, 1.0, 1.0)"
    product = f"g.mul(g.{numbers['activation']}({gate}), {up})"
    combined = "chosen.total" if numbers["before"] else "chosen.combine"
    if numbers["in_turns"]:
        lines += [
            '    both_TUF = chosen.linear(x_TD, "ffn_gate_up_exps")',
            "    used, hidden = config.routing.n_used, fixed(both_TUF.shape[-1]) // 2",
            "    pairs_TUF2 = g.reshape(both_TUF, used, hidden, 2)",
            "    gate = g.reshape(g.columns(pairs_TUF2, 0, 1), used, hidden)",
            "    up = g.reshape(g.columns(pairs_TUF2, 1, 2), used, hidden)",
            f'    return {combined}(chosen.linear({product}, "ffn_down_exps"))',
        ]
    elif product == "g.mul(g.silu(gate), up)":
        lines.append(f"    return {combined}(chosen.gated(x_TD))")
    else:
        lines.append(f"    return {combined}(chosen.gated(x_TD, lambda g, gate, up: {product}))")
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


WIDE = 98  # characters of a line's text
Numbers = Callable[[Expression], Mapping[str, str]]
"""The text of each number of an expression."""


@dataclass
class Body:
    """The lines of one function.

    held: variable -> the expression that it has; owner: `layer` or `weights`.
    """

    named: Named
    numbers: Numbers
    owner: str
    scope: Sequence[Expression]
    calls: Mapping[int, tuple[str, Expression]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    held: dict[str, Expression] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    of_model: Callable[[Expression], bool] = lambda of: False  # whose tensors are no layer's

    def name_of(self, of: Expression) -> str | None:
        """The variable that has an expression's value."""
        return next((name for name, expr in self.held.items() if expr is of), None)

    def text(self, of: Expression) -> str:
        """An expression as an argument: its variable, or the call that makes it."""
        known = self.name_of(of)
        if known is not None:
            return known
        called = self.calls.get(id(of))
        if called is not None:
            self.done.add(id(of))
            return called[0].format(self.text(called[1]))
        self.done.add(id(of))
        inner = [self.text(source) for source in of.inputs]
        owner = "weights" if self.of_model(of) else self.owner
        return call(of, inner, self.named, self.numbers(of), owner)

    def is_line(self, of: Expression) -> bool:
        """Whether an expression has a variable or is a call of a part."""
        return self.name_of(of) is not None or id(of) in self.calls

    def assign(self, name: str, of: Expression) -> None:
        """A line that gives a variable the value; another name if its value is still needed.

        Two lines where one would be too long.
        """
        before = set(self.done)
        text = self.text(of)
        first = of.inputs[0] if of.inputs else of
        if len(text) + len(name) > WIDE and first.inputs and not self.is_line(first):
            self.done = before  # what the other operands read is still needed
            self.assign(name, first)
            text = self.text(of)
        taken = name
        while taken in self.held and self._needed(self.held[taken]):
            taken = _next(taken)
        self.held[taken] = of
        self.lines.append(f"{taken} = {text}")

    def _needed(self, of: Expression) -> bool:
        """Whether something that is not yet written reads it."""
        if any(entry is of and last not in self.done for last, (_, entry) in self.calls.items()):
            return True
        return any(id(expr) not in self.done for expr in users(of, self.scope))


def _next(name: str) -> str:
    stem, _, suffix = name.partition("_")
    number = int(stem[-1]) + 1 if stem[-1].isdigit() else 2
    return f"{stem.rstrip('0123456789')}{number}_{suffix}"


def call(of: Expression, inner: Sequence[str], named: Named, numbers: Mapping[str, str], owner: str) -> str:
    """The call that makes an expression of the texts of its operands."""
    stem = named.get(id(of), "")
    x = inner[0] if inner else ""
    handler = CALLS.get(of.op)
    if handler is not None:
        return handler(of, inner, stem, numbers, owner)
    if of.weights:
        return f'g.{of.op}({x}, {owner}["{stem}"])'
    return f"g.{of.op}({', '.join(inner)})"


Handler = Callable[[Expression, Sequence[str], str, Mapping[str, str], str], str]


def _norm(of: Expression, inner: Sequence[str], stem: str, numbers: Mapping[str, str], owner: str) -> str:
    weight = f'{owner}["{stem}"]' if "weight" in of.weights else "None"
    if of.op == "rms_norm":
        return f"g.rms_norm({inner[0]}, {weight}, {numbers['eps']})"
    bias = f'{owner}["{stem}.bias"]' if "bias" in of.weights else "None"
    return f"g.layer_norm({inner[0]}, {weight}, {bias}, {numbers['eps']})"


def _reshape(of: Expression, inner: Sequence[str], stem: str, numbers: Mapping[str, str], owner: str) -> str:
    if len(of.shape) == 2 and len(of.inputs[0].shape) == 1:
        return f"g.heads({inner[0]}, {numbers['heads']})"
    if len(of.shape) == 1:
        return f"g.flatten({inner[0]})"
    return f"g.reshape({inner[0]}, {', '.join(map(str, of.shape))})"


def _attend(of: Expression, inner: Sequence[str], stem: str, numbers: Mapping[str, str], owner: str) -> str:
    more = "".join(
        f", {name}={numbers[name]}" for name in ("window", "softcap", "max_bias", "chunk") if name in numbers
    )
    more += f', sinks={owner}["{stem}"]' if of.weights else ""
    keys = ", ".join(inner[1:]) or "None, None"
    return f"g.attend({inner[0]}, {keys}, {numbers['cache']}, {numbers['scale']}{more})"


def _linear(of: Expression, inner: Sequence[str], stem: str, numbers: Mapping[str, str], owner: str) -> str:
    if stem == "output":
        return f"weights.logits({inner[0]})"
    return f'{owner}.linear({inner[0]}, "{stem}")'


def _scale(of: Expression, inner: Sequence[str], stem: str, numbers: Mapping[str, str], owner: str) -> str:
    offset = f", {numbers['offset']}" if numbers["offset"] != "0.0" else ""
    return f"g.scale({inner[0]}, {numbers['factor']}{offset})"


def _experts(of: Expression, inner: Sequence[str], stem: str, numbers: Mapping[str, str], owner: str) -> str:
    if is_plain(of):
        more = "" if of.numbers["normalise"] else ", normalise=False"
        return f"swiglu_experts(g, layer, {inner[0]}, {numbers['used']}{more})"
    return f"experts(g, config, layer, {inner[0]})"


def _table_rows(
    of: Expression, inner: Sequence[str], stem: str, numbers: Mapping[str, str], owner: str
) -> str:
    ids = f"g.reshape({inner[0]})" if of.inputs[0].shape == (1,) else inner[0]
    return f'g.rows({owner}["{stem}"], g.cast({ids}, "i32"))'


def _shift(of: Expression, inner: Sequence[str], stem: str, numbers: Mapping[str, str], owner: str) -> str:
    return f"shifted(g, {inner[0]}, {of.numbers['by']}, {_state(numbers, owner)})"


def _conv(of: Expression, inner: Sequence[str], stem: str, numbers: Mapping[str, str], owner: str) -> str:
    apart = f", apart={of.numbers['apart']}" if of.numbers["apart"] > 1 else ""
    return f'short_conv(g, {owner}, "{stem}", {inner[0]}, {_state(numbers, owner)}{apart})'


def _linear_attention(
    of: Expression, inner: Sequence[str], stem: str, numbers: Mapping[str, str], owner: str
) -> str:
    gates = f", ({inner[3]},)" if inner[3:] else ""
    scale = f", scale={numbers['scale']}" if of.numbers["scale"] != 1.0 else ""
    return f"g.linear_attention({', '.join(inner[:3])}, {numbers['memory']}{gates}{scale})"


def _factors(of: Expression, inner: Sequence[str], stem: str, numbers: Mapping[str, str], owner: str) -> str:
    values = of.numbers["values"]
    if len(values) > MOST_FACTORS:
        raise ArchitectureError(f"{of.told}: {len(values)} elements with a constant factor each")
    return f"g.mul({inner[0]}, g.constant({list(values)}))"


def _ssm_scan(of: Expression, inner: Sequence[str], stem: str, numbers: Mapping[str, str], owner: str) -> str:
    layer, what = _state(numbers, owner).split(", ")
    return f"g.ssm_scan({', '.join(inner)}, {layer}, {numbers['d_state']}, {what})"


def _gated_delta_net(
    of: Expression, inner: Sequence[str], stem: str, numbers: Mapping[str, str], owner: str
) -> str:
    return f"g.gated_delta_net({', '.join(inner)}, {numbers['memory']}, {numbers['scale']}, grouped=True)"


def _state(numbers: Mapping[str, str], owner: str) -> str:
    """The arguments that name a state: the layer's number, 0 outside the layers, and a name of its own."""
    return f'{"layer.index" if owner == "layer" else "0"}, "{numbers["state"]}"'


def _with_number(
    of: Expression, inner: Sequence[str], stem: str, numbers: Mapping[str, str], owner: str
) -> str:
    arguments = [*inner, *([f'{owner}["{stem}"]'] if of.weights else [])]
    more = [f"g.constant({numbers['number']})"] if "number" in numbers else []
    return f"g.{of.op}({', '.join([*arguments, *more])})"


WITH_NUMBER = ("less", "less_equal", "equal", "maximum", "minimum", "where")
CALLS: Mapping[str, Handler] = {
    "ids": lambda of, inner, stem, numbers, owner: 'g.reshape(g.cast(g.tokens, "f32"), 1)',
    "table_rows": _table_rows,
    "shift": _shift,
    "conv": _conv,
    "remainder": lambda of, inner, stem, numbers, owner: f"remainder(g, {inner[0]}, {of.numbers['of']})",
    **dict.fromkeys(WITH_NUMBER, _with_number),
    "embed": lambda of, inner, stem, numbers, owner: f'g.embed({owner}["{stem}"], g.tokens)',
    "position_rows": lambda of, inner, stem, numbers, owner: f'g.rows({owner}["{stem}"], g.positions)',
    "sinusoids": lambda of, inner, stem, numbers, owner: f'g.rows({owner}["position_embd"], g.positions)',
    "positions": lambda of, inner, stem, numbers, owner: 'g.reshape(g.cast(g.positions, "f32"), 1)',
    "parameter": lambda of, inner, stem, numbers, owner: f'{owner}["{stem}"]',
    "rms_norm": _norm,
    "l2_norm": lambda of, inner, stem, numbers, owner: f"g.l2_norm({inner[0]}, {numbers['eps']})",
    "layer_norm": _norm,
    "reshape": _reshape,
    "column": lambda of, inner, stem, numbers, owner: f"g.reshape({inner[0]}, {of.shape[0]}, 1, keep=0)",
    "repeat": lambda of, inner, stem, numbers, owner: f"g.repeat({inner[0]}, {of.numbers['n']})",
    "permute": lambda of, inner, stem, numbers, owner: (
        f"g.permute({inner[0]}, 0, 2, 1{', 3' if len(of.shape) == 3 else ''})"
    ),
    "attend": _attend,
    "linear": _linear,
    "per_head": lambda of, inner, stem, numbers, owner: f'g.per_head({owner}["{stem}"], {inner[0]})',
    "linear_attention": _linear_attention,
    "ssm_scan": _ssm_scan,
    "factors": _factors,
    "gated_delta_net": _gated_delta_net,
    "running_sum": lambda of, inner, stem, numbers, owner: f"running_sum(g, {inner[0]}, {numbers['memory']})",
    "decayed_sum": lambda of, inner, stem, numbers, owner: (
        f"decayed_sum(g, {', '.join(inner)}, {numbers['memory']})"
    ),
    "constant_rows": lambda of, inner, stem, numbers, owner: f"constant_rows(g, {numbers['rows']})",
    "scale": _scale,
    "experts": _experts,
    "rope": lambda of, inner, stem, numbers, owner: f'g.rope({inner[0]}, table, "{of.numbers["mode"]}")',
    "softcap": lambda of, inner, stem, numbers, owner: f"g.softcap({inner[0]}, {numbers['limit']})",
    "columns": lambda of, inner, stem, numbers, owner: (
        f"g.columns({inner[0]}, {numbers.get('start', of.numbers['start'])}, "
        f"{numbers.get('stop', of.numbers['stop'])})"
    ),
    "clamp": lambda of, inner, stem, numbers, owner: (
        f"g.clamp({inner[0]}, {numbers['low']}, {numbers['high']})"
    ),
}
