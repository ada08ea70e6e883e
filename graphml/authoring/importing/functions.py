"""The functions of an imported file: `build` with one loop over the layers, `attention`, `feed_forward`.

Knows expressions and their places in a layer; nothing of config.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphml.authoring.importing.expressions import Expression
from graphml.authoring.importing.layers import Layered
from graphml.authoring.importing.naming import ACTIVATIONS, Named, users
from graphml.authoring.importing.printing import WIDE, Body, Numbers


@dataclass(frozen=True, eq=False)
class Part:
    """A function of its own: from the value `entry` to `last`; `inside` is what it makes."""

    name: str
    entry: Expression
    last: Expression
    inside: Sequence[Expression]


def parts(layer: Sequence[Expression], named: Named) -> list[Part]:
    """Attention and the feed-forward of a layer, where they have one way in."""
    found = []
    for name, ends, firsts in (
        ("attention", ("attn_output",), ("attn_q", "attn_k", "attn_v")),
        ("feed_forward", ("ffn_down",), ("ffn_gate", "ffn_up")),
    ):
        last = next((one for one in layer if named.get(id(one)) in ends), None)
        entries = {id(one.inputs[0]): one.inputs[0] for one in layer if named.get(id(one)) in firsts}
        if last is None or len(entries) != 1:
            continue
        entry = next(iter(entries.values()))
        inside = _between(layer, entry, last)
        outside = {id(each) for one in inside for each in one.inputs} - {id(one) for one in inside}
        leaks = [
            one for one in inside if one is not last and any(each not in inside for each in users(one, layer))
        ]
        if outside == {id(entry)} and not leaks:
            found.append(Part(name, entry, last, inside))
    return found


def _between(layer: Sequence[Expression], entry: Expression, last: Expression) -> list[Expression]:
    wanted, stack = set(), [last]
    known = {id(one) for one in layer}
    while stack:
        one = stack.pop()
        if one is entry or id(one) in wanted or id(one) not in known:
            continue
        wanted.add(id(one))
        stack += one.inputs
    return [one for one in layer if id(one) in wanted]


def part_lines(part: Part, named: Named, numbers: Numbers) -> list[str]:
    """The lines of a part's function; its argument is x_TD."""
    body = Body(named, numbers, "layer", part.inside)
    body.held["x_TD"] = part.entry
    for one in part.inside:
        if one is part.last:
            continue
        variable = _variable(one, part.inside, named)
        if variable:
            body.assign(variable, one)
    attend = next((one for one in part.inside if one.op == "attend"), None)
    if attend is not None and len(body.text(part.last)) > WIDE:
        body.assign("y_TD", attend)
    return [*body.lines, f"return {body.text(part.last)}"]


def _variable(one: Expression, inside: Sequence[Expression], named: Named) -> str:
    """The variable of a value that gets one: heads, gate and up, what several read."""
    for attend in users(one, inside):
        if attend.op == "attend":
            role = "qkv"[attend.inputs.index(one)]
            return f"{role}_T{'N' if role == 'q' else 'K'}H"
    if one.inputs and named.get(id(one.inputs[0])) == "ffn_gate" and one.op in ACTIVATIONS:
        return "gate_TF"
    if (
        len(users(one, inside)) > 1
        or one.op == "where"
        or sum(one is each for user in users(one, inside) for each in user.inputs) > 1
    ):
        return "h_T" + ("NH" if len(one.shape) > 1 else "F")
    return ""


def loop_lines(
    found: Layered,
    number: int,
    named: Named,
    numbers: Numbers,
    made: Sequence[Part],
    calls_of: Mapping[str, str],
) -> list[str]:
    """The lines within the loop for a layer; the residual stream is x_TD before and after.

    calls_of: the text of each part's call, with {} for its entry.
    """
    layer = found.layers[number]
    inside = {id(one) for part in made for one in part.inside}
    calls = {id(part.last): (calls_of[part.name], part.entry) for part in made}
    body = Body(named, numbers, "layer", [one for one in layer if id(one) not in inside], calls)
    body.held["x_TD"] = found.entering(number)
    last = layer[-1]
    for one in layer:
        if id(one) in inside and id(one) not in calls:
            continue
        variable = _loop_variable(one, layer, named, last, calls)
        if variable:
            body.assign(variable, one)
    return body.lines


def _loop_variable(
    one: Expression, layer: Sequence[Expression], named: Named, last: Expression, calls: Mapping[int, object]
) -> str:
    if one is last or (one.op == "add" and len(one.inputs) == 2 and len(users(one, layer)) > 1):
        return "x_TD"
    readers = users(one, layer)
    added = readers[0].inputs if len(readers) == 1 and readers[0].op == "add" else ()
    if id(one) in calls and len(added) == 2 and sum(id(each) in calls for each in added) == 1:
        return ""  # within the sum with the residual stream
    if id(one) in calls or named.get(id(one)) == "experts":
        return "a_TD" if named.get(id(one)) == "attn_output" else "h_TD"
    if one.op in ("rms_norm", "layer_norm"):
        return "a_TD" if named.get(id(one)) == "post_attention_norm" else "h_TD"
    return "h_TD" if len(users(one, layer)) > 1 or one.op == "where" else ""


def before_lines(found: Layered, named: Named, numbers: Numbers) -> list[str]:
    """The lines before the loop."""
    body = Body(named, numbers, "weights", found.before)
    body.assign("x_TD", found.stream)
    return body.lines


def after_lines(found: Layered, named: Named, numbers: Numbers) -> list[str]:
    """The lines after the loop, the last of which returns the logits."""
    body = Body(named, numbers, "weights", found.after)
    body.held["x_TD"] = found.leaving(-1)
    for one in found.after:
        if (
            one is not found.result
            and one.op in ("rms_norm", "layer_norm")
            and len(users(one, found.after)) > 1
        ):
            body.assign("x_TD", one)
    return [*body.lines, f"return {body.text(found.result)}"]
