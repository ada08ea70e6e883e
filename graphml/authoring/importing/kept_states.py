"""Ops of an imported file that keep something of the tokens before: functions, and names of states.

Knows expressions by layer; nothing of text but the names.
"""

from __future__ import annotations

from graphml.authoring.importing.expressions import Expression
from graphml.authoring.importing.layers import Layered

SHORT_CONV, RUNNING = "graphml_models._short_conv", "graphml_models._running_sum"
FUNCTIONS = {
    "shift": (SHORT_CONV, "shifted"),
    "conv": (SHORT_CONV, "short_conv"),
    "remainder": (SHORT_CONV, "remainder"),
    "running_sum": (RUNNING, "running_sum"),
    "decayed_sum": (RUNNING, "decayed_sum"),
    "constant_rows": (RUNNING, "constant_rows"),
}  # op -> the module and function that compute it
KEEPING = ("shift", "conv", "ssm_scan")  # ops whose state has a name
SUMMING = (
    "linear_attention",
    "running_sum",
    "gated_delta_net",
    "decayed_sum",
)  # ops whose state is a matrix of each head, by a number


def state_of(model: Layered, of: Expression) -> dict[str, str]:
    """The name or the number of an expression's state; nothing for one without."""
    layers = [("", model.layers[number]) for number in model.firsts]
    places = [*layers, ("before_", model.before), ("after_", model.after)]
    if of.op in KEEPING:
        part, listed = next((part, listed) for part, listed in places if of in listed)
        states = [expr for expr in listed if expr.op == of.op]
        return {"state": f"{part}{of.op}_{states.index(of)}"}
    if of.op not in SUMMING:
        return {}
    summing = [[expr for expr in listed if expr.op in SUMMING] for _, listed in places]
    at = next(i for i, exprs in enumerate(summing) if of in exprs)
    which, in_layers = summing[at].index(of), at < len(layers)
    if not in_layers:  # after those of the layers
        which += max(map(len, summing[: len(layers)])) + (len(summing[-2]) if at == len(places) - 1 else 0)
    offset = f"{which} * config.n_layer".removeprefix("1 * ") if which else ""
    own = ["layer.index"] if in_layers else []
    return {"memory": " + ".join([*own, *([offset] if offset else [])]) or "0"}
