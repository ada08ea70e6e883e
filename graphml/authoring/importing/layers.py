"""Groups expressions by the layers of their modules, and layers by what they compute.

Knows expressions; nothing of names or text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphml.authoring.importing.expressions import Expression
from graphml.errors import ArchitectureError

MOST_KINDS = 4
OF_EACH_LAYER = ("window", "frequencies", "magnitude")  # numbers that lists of the configuration have
_NUMBER = re.compile(r"(?:^|\.)(\d{1,6})(?=\.|$)")


@dataclass(frozen=True, eq=False)
class Layered:
    """The expressions before, in and after the layers, in order; layers of a kind are alike by place.

    kinds: of each layer, counted by their first layers. stream: the expression that enters the first layer.
    result: the logits.
    """

    before: Sequence[Expression]
    layers: Sequence[Sequence[Expression]]
    after: Sequence[Expression]
    stream: Expression
    result: Expression
    kinds: Sequence[int]

    @property
    def firsts(self) -> list[int]:
        """The number of the first layer of each kind."""
        return [list(self.kinds).index(kind) for kind in range(max(self.kinds) + 1)]

    def like(self, number: int) -> Sequence[Expression]:
        """The first layer of the same kind, whose expressions have names."""
        return self.layers[self.firsts[self.kinds[number]]]

    def entering(self, number: int) -> Expression:
        """What enters a layer."""
        return self.stream if number == 0 else self.leaving(number - 1)

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
    for number, layer in enumerate(layers):
        attends = [one for one in layer if one.op == "attend"]
        if len(attends) > 1:
            raise ArchitectureError(
                f"{attends[1].told}: layer {number} has {len(attends)} attentions: wanted one for its "
                "cache, in modules that are called once"
            )
    after_last = _descendants(everything, layers[-1])
    before = [one for one in everything if layer_of(one) is None and id(one) not in after_last]
    after = [one for one in everything if layer_of(one) is None and id(one) in after_last]
    stream = _stream(layers[0], before)
    plain = Layered(before, layers, after, stream, result, [0] * count)
    shapes = [_shape_of(plain, number) for number in range(count)]
    unlike = [one for i, one in enumerate(shapes) if one not in shapes[:i]]
    if len(unlike) > MOST_KINDS:
        raise _too_many(plain, shapes)
    return replace(plain, kinds=[unlike.index(one) for one in shapes])


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
    """What a layer is, whatever its weights."""
    layer = found.layers[number]
    places: dict[int, object] = {id(found.entering(number)): "stream"}
    told: list[tuple[object, ...]] = []
    for i, one in enumerate(layer):
        for each in one.inputs:
            if id(each) not in places:
                raise ArchitectureError(
                    f"{one.told}: layer {number} reads a value of another layer besides the residual stream"
                )
        roles = tuple(sorted((role, weight.shape, weight.rows) for role, weight in one.weights.items()))
        numbers = tuple((name, value) for name, value in one.numbers.items() if name not in OF_EACH_LAYER)
        told.append((one.op, tuple(places[id(each)] for each in one.inputs), one.shape, roles, numbers))
        places[id(one)] = i
    return told


def _too_many(found: Layered, shapes: Sequence[list[tuple[object, ...]]]) -> ArchitectureError:
    """The error that names the first operation in which a layer differs from the first one."""
    number = next(i for i, one in enumerate(shapes) if one != shapes[0])
    pairs = zip(shapes[0], shapes[number], strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(shapes[0]), len(shapes[number])) - 1)
    return ArchitectureError(
        f"{found.layers[number][at].told}: layer {number} computes otherwise than layer 0; layers of more "
        f"than {MOST_KINDS} kinds cannot be imported"
    )
