"""Groups expressions by the layers of their modules and finds what all layers have in common.

Knows expressions; nothing of names or text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from graphml.authoring.importing.expressions import Expression
from graphml.errors import ArchitectureError

_NUMBER = re.compile(r"(?:^|\.)(\d{1,6})(?=\.|$)")


@dataclass(frozen=True, eq=False)
class Layered:
    """The expressions before, in and after the layers, in order; layers: of each layer, alike by place.

    stream: the expression that enters the first layer. result: the logits.
    """

    before: Sequence[Expression]
    layers: Sequence[Sequence[Expression]]
    after: Sequence[Expression]
    stream: Expression
    result: Expression

    def leaving(self, number: int) -> Expression:
        """What leaves a layer."""
        return self.layers[number][-1]


def in_order(result: Expression) -> list[Expression]:
    """All expressions, operands first."""
    found: list[Expression] = []
    seen: set[int] = set()
    stack: list[tuple[Expression, bool]] = [(result, False)]
    while stack:
        one, done = stack.pop()
        if done:
            found.append(one)
        elif id(one) not in seen:
            seen.add(id(one))
            stack.append((one, True))
            stack += [(each, False) for each in reversed(one.inputs)]
    return found


def layer_of(one: Expression) -> int | None:
    """The first number in the path of its module."""
    found = _NUMBER.search(one.path)
    return int(found[1]) if found else None


def layered(result: Expression) -> Layered:
    """The expressions by layer; ArchitectureError where layers are not alike."""
    everything = in_order(result)
    count = 1 + max((number for one in everything if (number := layer_of(one)) is not None), default=-1)
    if count < 1:
        raise ArchitectureError(
            "no layers: wanted modules with numbers in their paths, such as those of a ModuleList"
        )
    layers = [[one for one in everything if layer_of(one) == number] for number in range(count)]
    after_last = _descendants(everything, layers[-1])
    before = [one for one in everything if layer_of(one) is None and id(one) not in after_last]
    after = [one for one in everything if layer_of(one) is None and id(one) in after_last]
    stream = _stream(layers[0], before)
    found = Layered(before, layers, after, stream, result)
    for number in range(1, count):
        _check_alike(found, number)
    return found


def _descendants(everything: Sequence[Expression], of: Sequence[Expression]) -> set[int]:
    found = {id(one) for one in of}
    for one in everything:
        if any(id(each) in found for each in one.inputs):
            found.add(id(one))
    return found


def _stream(layer: Sequence[Expression], before: Sequence[Expression]) -> Expression:
    known = {id(one) for one in before}
    entering = dict.fromkeys(each for one in layer for each in one.inputs if id(each) in known)
    if len(entering) != 1:
        raise ArchitectureError(
            f"{len(entering)} values enter the first layer: wanted one, the residual stream"
        )
    return next(iter(entering))


def _shape_of(found: Layered, number: int) -> list[tuple[object, ...]]:
    """What a layer is, whatever its weights and numbers."""
    layer = found.layers[number]
    entering = found.stream if number == 0 else found.leaving(number - 1)
    places: dict[int, object] = {id(entering): "stream"}
    told: list[tuple[object, ...]] = []
    for i, one in enumerate(layer):
        for each in one.inputs:
            if id(each) not in places:
                raise ArchitectureError(
                    f"{one.told}: layer {number} reads a value of another layer besides the residual stream"
                )
        roles = tuple(sorted((role, weight.shape, weight.rows) for role, weight in one.weights.items()))
        told.append((one.op, tuple(places[id(each)] for each in one.inputs), one.shape, roles))
        places[id(one)] = i
    return told


def _check_alike(found: Layered, number: int) -> None:
    first, other = _shape_of(found, 0), _shape_of(found, number)
    for i, (a, b) in enumerate(zip(first, other, strict=False)):
        if a != b:
            one = found.layers[number][i]
            raise ArchitectureError(
                f"{one.told}: layer {number} computes otherwise than layer 0 ({b[0]} where that has {a[0]}); "
                "layers of several kinds cannot be imported yet"
            )
    if len(first) != len(other):
        raise ArchitectureError(
            f"layer {number} has {len(other)} operations and layer 0 {len(first)}; layers of "
            "several kinds cannot be imported yet"
        )
