"""The lines of a file's functions: attention and feed-forward of a layer, the loop, what is around it.

Knows text and names of values; nothing of config.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphml.authoring.importing.expressions import Expression
from graphml.authoring.importing.kept_states import KEEPING
from graphml.authoring.importing.layers import Layered
from graphml.authoring.importing.naming import ACTIVATIONS, ATTENTIONS, Named, users
from graphml.authoring.importing.printing import WIDE, Body, Numbers

LEAVES = ("ids", "embed", "positions", "position_rows")


@dataclass(frozen=True, eq=False)
class BuilderFunction:
    """A function of its own: from the value `entry` to `last`; `inside` is what it makes."""

    name: str
    entry: Expression
    last: Expression
    inside: Sequence[Expression]


def parts(
    layer: Sequence[Expression], named: Named, kept: Sequence[Expression] = ()
) -> list[BuilderFunction]:
    """Attention and the feed-forward of a layer, where they have one way in, and no value that is kept."""
    listed = []
    for name, ends, firsts in (
        ("attention", ("attn_output",), ("attn_q", "attn_k", "attn_v")),
        ("feed_forward", ("ffn_down",), ("ffn_gate", "ffn_up")),
    ):
        last = next((expr for expr in layer if named.get(id(expr)) in ends), None)
        entries = {id(expr.inputs[0]): expr.inputs[0] for expr in layer if named.get(id(expr)) in firsts}
        if last is None or len(entries) != 1:
            continue
        entry = next(iter(entries.values()))
        inside = _between(layer, entry, last)
        outside = {id(each) for expr in inside for each in expr.inputs} - {id(expr) for expr in inside}
        leaks = [
            expr
            for expr in inside
            if expr in kept or (expr is not last and any(each not in inside for each in users(expr, layer)))
        ]
        if outside == {id(entry)} and not leaks:
            listed.append(BuilderFunction(name, entry, last, inside))
    return listed


def _between(layer: Sequence[Expression], entry: Expression, last: Expression) -> list[Expression]:
    wanted, stack = set(), [last]
    known = {id(expr) for expr in layer}
    while stack:
        expr = stack.pop()
        if expr is entry or id(expr) in wanted or id(expr) not in known:
            continue
        wanted.add(id(expr))
        stack += expr.inputs
    return [expr for expr in layer if id(expr) in wanted]


def part_lines(part: BuilderFunction, named: Named, numbers: Numbers) -> list[str]:
    """The lines of a part's function; its argument is x_TD."""
    body = Body(named, numbers, "layer", part.inside)
    body.held["x_TD"] = part.entry
    for expr in part.inside:
        if expr is part.last:
            continue
        variable = _variable(expr, part.inside, named)
        if variable:
            body.assign(variable, expr)
    attend = next((expr for expr in part.inside if expr.op in ATTENTIONS), None)
    if attend is not None and len(body.text(part.last)) > WIDE:
        body.assign("y_TD", attend)
    return [*body.lines, f"return {body.text(part.last)}"]


def _variable(expr: Expression, inside: Sequence[Expression], named: Named) -> str:
    """The variable of a value that gets one: heads, gate and up, what several read."""
    for attend in users(expr, inside):
        if attend.op in ATTENTIONS and expr in attend.inputs[:3]:
            role = "qkv"[attend.inputs.index(expr)]
            return f"{role}_T{'N' if role == 'q' else 'K'}H"
    if expr.op in KEEPING:
        return "past_T" + ("NH" if len(expr.shape) > 1 else "D")
    if expr.inputs and named.get(id(expr.inputs[0])) == "ffn_gate" and expr.op in ACTIVATIONS:
        return "gate_TF"
    if (
        len(users(expr, inside)) > 1
        or expr.op == "where"
        or sum(expr is each for user in users(expr, inside) for each in user.inputs) > 1
    ):
        return "h_T" + ("NH" if len(expr.shape) > 1 else "F")
    return ""


def loop_lines(
    model: Layered,
    number: int,
    named: Named,
    numbers: Numbers,
    layer_parts: Sequence[BuilderFunction],
    calls_of: Mapping[str, str],
) -> list[str]:
    """The lines within the loop for a layer; the residual stream is x_TD before and after.

    calls_of: the text of each part's call, with {} for its entry.
    """
    layer = model.layers[number]
    inside = {id(expr) for part in layer_parts for expr in part.inside}
    calls = {id(part.last): (calls_of[part.name], part.entry) for part in layer_parts}
    body = Body(named, numbers, "layer", [expr for expr in layer if id(expr) not in inside], calls)
    body.of_model = model.is_of_model
    kept = _kept(model)
    body.held |= {"x_TD": model.entering(number), **_beside(model)}
    body.held |= {name: expr for name, expr in kept.items() if expr not in layer}
    last = layer[-1]
    for expr in layer:
        if id(expr) in inside and id(expr) not in calls:
            continue
        variable = next((name for name, value in kept.items() if value is expr and expr is not last), "")
        variable = variable or _loop_variable(expr, layer, named, last, calls)
        if variable:
            body.assign(variable, expr)
        if expr is last and expr in model.kept:
            body.lines.append(f"{next(name for name, value in kept.items() if value is expr)} = x_TD")
    return body.lines


def _loop_variable(
    expr: Expression, layer: Sequence[Expression], named: Named, last: Expression, calls: Mapping[int, object]
) -> str:
    if expr is last or (expr.op == "add" and len(expr.inputs) == 2 and len(users(expr, layer)) > 1):
        return "x_TD"
    if expr.op in KEEPING:
        return "past_TD"
    readers = users(expr, layer)
    added = readers[0].inputs if len(readers) == 1 and readers[0].op == "add" else ()
    if id(expr) in calls and len(added) == 2 and sum(id(each) in calls for each in added) == 1:
        return ""  # within the sum with the residual stream
    if id(expr) in calls or named.get(id(expr)) == "experts":
        return "a_TD" if named.get(id(expr)) == "attn_output" else "h_TD"
    if expr.op in ("rms_norm", "layer_norm"):
        return "a_TD" if named.get(id(expr)) == "post_attention_norm" else "h_TD"
    return "h_TD" if len(users(expr, layer)) > 1 or expr.op == "where" else ""


def before_lines(model: Layered, named: Named, numbers: Numbers) -> list[str]:
    """The lines before the loop."""
    body = Body(named, numbers, "weights", model.before)
    _assign_shared(body, model.before)
    body.assign("x_TD", model.stream)
    for name, expr in _beside(model).items():
        body.assign(name, expr)
    return body.lines


def _beside(model: Layered) -> dict[str, Expression]:
    """The values beside the stream by their variables."""
    return {f"e{i or ''}_TE": expr for i, expr in enumerate(model.beside)}


def _kept(model: Layered) -> dict[str, Expression]:
    """The values of single layers that are read behind them, by their variables."""
    suffixes = ["T" + ("NH" if len(expr.shape) > 1 else "D") for expr in model.kept]
    return {f"kept{i or ''}_{suffixes[i]}": expr for i, expr in enumerate(model.kept)}


def after_lines(model: Layered, named: Named, numbers: Numbers) -> list[str]:
    """The lines after the loop, the last of which returns the logits."""
    body = Body(named, numbers, "weights", model.after)
    body.held |= {"x_TD": model.leaving(-1), **_beside(model), **_kept(model)}
    for expr in model.after:
        if (
            expr is not model.result
            and expr.op in ("rms_norm", "layer_norm")
            and len(users(expr, model.after)) > 1
        ):
            body.assign("x_TD", expr)
    _assign_shared(body, model.after)
    return [*body.lines, f"return {body.text(model.result)}"]


def _assign_shared(body: Body, outside: Sequence[Expression]) -> None:
    """Lines for values before or after the layers that several others read, or that keep a state."""
    for expr in outside:
        readers = [user for user in outside for each in user.inputs if each is expr]
        if expr.op in KEEPING or (len(readers) > 1 and body.name_of(expr) is None and expr.op not in LEAVES):
            body.assign("past_TD" if expr.op in KEEPING else "h_TD", expr)
