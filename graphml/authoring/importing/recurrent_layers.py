"""Recurrent ops of a trace as graphml's: state spaces and gated delta rules, each with a state.

Knows views and one node at a time; nothing of torch's functions, which `peers/recurrent_functions.py` knows.
"""

from __future__ import annotations

from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.expressions import Expression, View, Weight
from graphml.authoring.importing.parameter_values import computed
from graphml.authoring.importing.walked import Walked


def scanned(walk: Walked, node: TracedNode) -> View:
    """A state space: x and the result flat, [N * P]; B and C flat, [G * S]."""
    x, dt, b, c = (_of_tokens(walk, node, role) for role in ("x", "dt", "b", "c"))
    a, d = (_of_parameters(walk, node, role) for role in ("a", "d"))
    groups, d_state = walk.shape_of(node.args["b"]["node"])[-2:]
    walk.neighbours.add(node.name)
    return walk.made(
        node, "ssm_scan", (x, dt, a, b, c, d), x.shape, numbers={"d_state": d_state, "n_group": groups}
    )


def _of_tokens(walk: Walked, node: TracedNode, role: str) -> Expression:
    """An operand, flat for each token."""
    view = walk.view(node.args[role]["node"])
    return walk.select.taken(view, (int(view.elements.size),))


def _of_parameters(walk: Walked, node: TracedNode, role: str) -> Expression:
    """An operand that is a parameter, or is computed from one."""
    name = node.args[role]["node"]
    if not walk.dependence.is_parameters(name):
        raise ValueError(f"{role} of a state space that depends on tokens or positions")
    of_parameters = computed(walk, node, name)
    if of_parameters is not None:
        return of_parameters
    weight = walk.weight(name)
    shape = tuple(size for size in weight.shape if size != 1) or (1,)
    return walk.expression(
        node, "parameter", (), shape, {"weight": Weight(weight.source, shape, weight.order)}
    )


def delta_ruled(walk: Walked, node: TracedNode) -> View:
    """A gated delta rule: q and k [G, K], v [N, V], decay [N, 1] or [N, K], beta [N, 1]."""
    rows = []
    for role in ("q", "k", "v", "decay", "beta"):
        view = walk.view(node.args[role]["node"])
        elements = view.elements
        width = 1 if role == "beta" else elements.shape[-1]
        rows.append(walk.select.of_rows(view.of, elements.reshape(-1, width)))
    walk.neighbours.add(node.name)
    numbers = {"scale": float(node.args["scale"])}
    return walk.made(node, "gated_delta_net", tuple(rows), rows[2].shape, numbers=numbers)


def decayed(walk: Walked, node: TracedNode) -> View:
    """A linear recurrence of each element, with a decay of its own."""
    x, decay = (_of_tokens(walk, node, role) for role in ("x", "decay"))
    walk.neighbours.add(node.name)
    return walk.made(node, "decayed_sum", (x, decay), x.shape)
