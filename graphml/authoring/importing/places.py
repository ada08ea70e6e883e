"""Where each tensor of the imported file comes from: parameters, their changes, names in the checkpoint.

Knows values of parameters and names; nothing of text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.dependence import Dependence
from graphml.authoring.importing.description import TracedInput
from graphml.authoring.importing.evaluation import Evaluator, random_parameter
from graphml.authoring.importing.expressions import Expression, Weight
from graphml.authoring.importing.layers import Layered
from graphml.authoring.importing.naming import Named, pattern
from graphml.authoring.importing.region import same
from graphml.errors import ArchitectureError

Array = NDArray[Any]
EXPERTS = {
    "router": "ffn_gate_inp",
    "router_bias": "ffn_gate_inp",
    "gate_up": "ffn_gate_up_exps",
    "gate": "ffn_gate_exps",
    "up": "ffn_up_exps",
    "down": "ffn_down_exps",
    "gate_up_bias": "ffn_gate_up_exps",
    "gate_bias": "ffn_gate_exps",
    "up_bias": "ffn_up_exps",
    "down_bias": "ffn_down_exps",
    "bias": "exp_probs_b",
}
CHANGES: Mapping[str, Callable[[Array], Array]] = {
    "": lambda x: x,
    "plus_one": lambda x: 1.0 + x,
    "flat": lambda x: x.reshape(-1),
    "transposed": lambda x: np.swapaxes(x, -1, -2) if x.ndim > 1 else x,
}
COMPUTED = "computed"
"""The change of a tensor that a plain module computes from its parameters: the GGUF holds the result."""


@dataclass(frozen=True)
class ParameterPlace:
    """One tensor: our name with `{}` for the layer; the parameter of a layer that has it; what is done to it.

    parameter: of a computed tensor the names of all that it is computed from. rows: which of its rows, of
    the parameter after the change; None for all. shape: the tensor's.
    """

    name: str
    parameter: str
    change: str
    rows: tuple[int, ...] | None
    shape: tuple[int, ...]

    def is_like(self, other: ParameterPlace) -> bool:
        """Whether it is the same tensor of another layer."""
        same_tensor = (self.name, self.change, self.rows) == (other.name, other.change, other.rows)
        return same_tensor and pattern(self.parameter) == pattern(other.parameter)


def tensor_name(stem: str, role: str) -> str:
    """Our name of a weight of an expression named `stem`."""
    if stem == "experts":
        return f"{EXPERTS[role]}.{'bias' if role.endswith('bias') else 'weight'}"
    return f"{stem}.bias" if role == "bias" else f"{stem}.weight"


def places(dependence: Dependence, model: Layered, named: Named) -> list[ParameterPlace]:
    """All tensors, those of the first layer of each kind for all layers.

    ArchitectureError for one that is no parameter of the checkpoint, nor a known change of one.
    """
    listed: list[ParameterPlace] = []
    groups = [("blk.{}.", model.layers[number]) for number in model.firsts]
    for prefix, group in [("", model.before), *groups, ("", model.after)]:
        own: dict[str, ParameterPlace] = {}
        for expr in group:
            start = "" if model.is_of_model(expr) else prefix
            for role, weight in expr.weights.items():
                name = start + tensor_name(named[id(expr)], role)
                place = _place(dependence, expr, name, weight)
                if own.setdefault(name, place) != place:
                    raise ArchitectureError(f"{expr.told}: two tensors would be called {name}")
        _check_one_name(listed, list(own.values()))
        listed += [own_place for own_place in own.values() if not any(map(own_place.is_like, listed))]
    return listed


def _check_one_name(listed: Sequence[ParameterPlace], own: Sequence[ParameterPlace]) -> None:
    """Refuse a parameter with one use in some layers and another in others: it could have no one name."""
    names = {(pattern(place.parameter), place.rows): place.name for place in listed if "{}" in place.name}
    for place in (each for each in own if each.change != COMPUTED):
        known = names.get((pattern(place.parameter), place.rows), place.name)
        if known != place.name:
            raise ArchitectureError(
                f"{place.parameter} is used as {place.name} in a layer, and as {known} in another kind "
                "of layer"
            )


def value_of(
    dependence: Dependence, weight: Weight, parameters: Callable[..., Array] = random_parameter
) -> Array:
    """A weight's numbers in graphml's layout."""
    value = np.asarray(Evaluator(dependence.description, {}, parameters).value(weight.source))
    value = value if weight.order is None else np.transpose(value, weight.order)
    if weight.rows is not None:
        value = value.reshape(-1, *weight.shape[1:])[list(weight.rows)]
    return value.reshape(weight.shape)


def _place(dependence: Dependence, expr: Expression, name: str, weight: Weight) -> ParameterPlace:
    description = dependence.description
    before = [description.inputs[each] for each in description.parameters_of(weight.source)]
    parameters = " and ".join(each.name for each in before)
    if len(before) == 1:
        change = _change(dependence, before[0], weight)
        if change is not None:
            return ParameterPlace(name, before[0].name, change, weight.rows, weight.shape)
    part = _whole_part(dependence, before, weight)
    if part is not None:
        return ParameterPlace(name, part.name, "", None, weight.shape)
    if not description.config:
        return ParameterPlace(name, parameters, COMPUTED, weight.rows, weight.shape)
    raise ArchitectureError(
        f"{expr.told}: {name} is computed from {parameters or 'no parameter'} in a way that no change "
        "of tensors does; the GGUF of a plain module could hold it (module:FILE.py:factory)"
    )


def _whole_part(dependence: Dependence, before: Sequence[TracedInput], weight: Weight) -> TracedInput | None:
    """The parameter whose numbers the rows of a weight are, of several that are joined."""
    if len(before) < 2 or weight.rows is None:
        return None
    wanted = value_of(dependence, weight)
    alike = [leaf for leaf in before if int(np.prod(leaf.shape)) == wanted.size]
    return next(
        (leaf for leaf in alike if same(random_parameter(leaf).reshape(wanted.shape), wanted, 1e-12)), None
    )


def is_held(dependence: Dependence, weight: Weight) -> bool:
    """Whether a checkpoint holds a weight: as a parameter, or as a known change of one."""
    before = dependence.description.parameters_of(weight.source)
    leaves = [dependence.description.inputs[name] for name in before]
    return len(leaves) == 1 and _change(dependence, leaves[0], weight) is not None


def _change(dependence: Dependence, leaf: TracedInput, weight: Weight) -> str | None:
    """What is done to a parameter, by the name of the change; None if it is none of those that are known."""
    parameter = random_parameter(leaf)
    wanted = value_of(dependence, Weight(weight.source, _full(dependence, weight), weight.order))
    for change, function in CHANGES.items():
        changed = function(parameter)
        if (
            changed.size == wanted.size
            and same(changed.reshape(wanted.shape), wanted, 1e-12)
            and (changed.ndim < 2 or changed.shape == wanted.shape or 1 in wanted.shape)
        ):
            return change
    return None


def _full(dependence: Dependence, weight: Weight) -> tuple[int, ...]:
    if weight.rows is None:
        return weight.shape
    value = np.asarray(Evaluator(dependence.description, {}).value(weight.source))
    return (value.size // int(np.prod(weight.shape[1:])), *weight.shape[1:])


@dataclass(frozen=True)
class StoredParameter:
    """A parameter as the checkpoint has it: the pattern of its name, and which part of ours it is.

    part: of a parameter for all experts: its rows as (half, halves); None: the same tensor.
    """

    pattern: str
    part: tuple[int, int] | None = None


def stored_as(
    parameters: Sequence[str], values: Mapping[str, Array], held: Mapping[str, Callable[[], Array]]
) -> dict[str, list[StoredParameter]]:
    """How the checkpoint stores each parameter: under its name, another name, or expert by expert.

    values: of those that it has under no such name; held: the checkpoint's tensors.
    """
    stored: dict[str, list[StoredParameter]] = {}
    claimed = {pattern(name) for name in parameters if name in held}
    free = {name: read for name, read in held.items() if pattern(name) not in claimed}
    for name in parameters:
        if name in held:
            stored[name] = [StoredParameter(pattern(name))]
        elif name in values:
            matches = _elsewhere(values[name], free) or _elsewhere(values[name], held)[:1]
            if matches:
                stored[name] = matches
    return stored


def _elsewhere(value: Array, free: Mapping[str, Callable[[], Array]]) -> list[StoredParameter]:
    for name, read in free.items():
        stored = read()
        if stored.shape == value.shape and np.array_equal(stored, value):
            return [StoredParameter(pattern(name))]
    if value.ndim != 3:
        return []
    matches = []
    for name, read in free.items():
        stored = read()
        if stored.ndim != 2 or stored.shape[1] != value.shape[2] or value.shape[1] % stored.shape[0]:
            continue
        halves = value.shape[1] // stored.shape[0]
        for half in range(halves):
            rows = value[0, half * stored.shape[0] : (half + 1) * stored.shape[0]]
            if halves < 3 and np.array_equal(rows, stored):
                matches.append(StoredParameter(pattern(name), (half, halves)))
    return matches
