"""Groups expressions by the layers of their modules, and layers by what they compute.

Knows expressions; nothing of names or text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphml.authoring.importing.expressions import BY_ELEMENT, Expression
from graphml.errors import ArchitectureError

MOST_KINDS = 4
OF_EACH_LAYER = (
    "window",
    "frequencies",
    "magnitude",
    "attention",
    "factor",
    "offset",
)  # numbers that do not make kinds
_NUMBER = re.compile(r"(?:^|\.)(\d{1,6})(?=\.|$)")


@dataclass(frozen=True, eq=False)
class Layered:
    """The expressions before, in and after the layers, in order; layers of a kind are alike by place.

    kinds: of each layer, counted by their first layers. stream: the expression that enters the first layer;
    beside: values from before the layers that they read besides; kept: values of single layers that others
    or what follows the layers read besides. result: the logits. n_blocks: layers with tensors of their own,
    which are called again and again where they are fewer than the layers.
    """

    before: Sequence[Expression]
    layers: Sequence[Sequence[Expression]]
    after: Sequence[Expression]
    stream: Expression
    result: Expression
    kinds: Sequence[int]
    beside: Sequence[Expression] = ()
    kept: Sequence[Expression] = ()
    n_blocks: int = 0

    @property
    def repeats(self) -> int:
        """How often the modules of the layers are called."""
        return len(self.layers) // self.n_blocks

    def is_of_model(self, expr: Expression) -> bool:
        """Whether what it reads of tensors is no layer's own, though it is computed in a layer."""
        return self.repeats > 1 and layer_of(expr) is None

    @property
    def firsts(self) -> list[int]:
        """The number of the first layer of each kind."""
        return [list(self.kinds).index(kind) for kind in range(max(self.kinds) + 1)]

    def like(self, number: int) -> Sequence[Expression]:
        """The first layer of the same kind, whose expressions have names."""
        return self.layers[self.firsts[self.kinds[number]]]

    def own_columns(self, number: int, expr: Expression) -> int | None:
        """Where the columns of a layer begin in a value beside the stream, less those of the layers before.

        None for another expression.
        """
        if expr.op != "columns" or not any(expr.inputs[0] is each for each in self.beside):
            return None
        start, stop = expr.numbers["start"], expr.numbers["stop"]
        return int(start - number * (stop - start))

    @property
    def width(self) -> int:
        """Of the residual stream; of the embedding, where several streams are one value of each token."""
        embeddings = [expr.shape[-1] for expr in self.before if expr.op == "embed"]
        return embeddings[0] if len(self.stream.shape) > 1 and embeddings else self.stream.shape[-1]

    def cache_of(self, number: int, attend: Expression) -> tuple[int, int]:
        """How many layers before the keys and values were written, and by which attention of that layer."""
        written = attend.numbers.get("keys_of", attend.numbers["attention"])
        attends = [
            [expr.numbers["attention"] for expr in layer if expr.op == "attend"] for layer in self.layers
        ]
        layer = next(i for i, numbers in enumerate(attends) if written in numbers)
        return number - layer, attends[layer].index(written)

    def entering(self, number: int) -> Expression:
        """What enters a layer."""
        return self.stream if number == 0 else self.leaving(number - 1)

    def leaving(self, number: int) -> Expression:
        """What leaves a layer."""
        return self.layers[number][-1]


def in_order(result: Expression) -> list[Expression]:
    """All expressions, operands first."""
    ordered: list[Expression] = []
    seen: set[int] = set()
    stack: list[tuple[Expression, bool]] = [(result, False)]
    while stack:
        expr, done = stack.pop()
        if done:
            ordered.append(expr)
        elif id(expr) not in seen:
            seen.add(id(expr))
            stack.append((expr, True))
            stack += [(each, False) for each in reversed(expr.inputs)]
    return ordered


def layer_of(expr: Expression) -> int | None:
    """The first number in the path of its module."""
    number = _NUMBER.search(expr.path)
    return int(number[1]) if number else None


def _numbers(everything: Sequence[Expression], count: int) -> dict[int, int]:
    """The layer of each expression that has one, by its id; modules that are called again are further layers.

    What modules without a number and the model itself compute between layers, such as sums with the residual
    stream, belongs to the last layer that it reads; behind the last layer as much of it as behind another.
    """
    numbers: dict[int, int] = {}
    between: list[Expression] = []
    shared = _shared_positions(everything)
    for expr in everything:
        if id(expr) in shared:
            continue
        number = layer_of(expr)
        before = max((numbers[id(each)] for each in expr.inputs if id(each) in numbers), default=None)
        if number is None and count > 1 and before is not None:
            number = before
            between.append(expr)
        elif number is not None and before is not None:  # the next call of the module
            number = before + (number - before) % count
        if number is not None:
            numbers[id(expr)] = number
    calls = 1 + max(numbers.values())
    own: list[list[Expression]] = [[] for _ in range(calls)]
    for expr in between:
        own[numbers[id(expr)]].append(expr)
    read = {number: set[int]() for number in range(calls)}  # by what modules of the layer compute
    for expr in reversed(everything):
        number = numbers.get(id(expr))
        if number is not None and (layer_of(expr) is not None or id(expr) in read[number]):
            read[number] |= set(map(id, expr.inputs))
    behind = [[expr for expr in exprs if id(expr) not in read[i]] for i, exprs in enumerate(own)]
    last, *others = ([expr.op for expr in exprs] for exprs in (behind[-1], *behind[:-1]))
    for expr in behind[-1][max((_common(last, ops) for ops in others), default=0) :]:
        del numbers[id(expr)]
    _own_columns(everything, numbers)
    return numbers


def _shared_positions(everything: Sequence[Expression]) -> set[int]:
    """Values of positions alone that several layers read: they are computed before the layers."""
    of_positions: set[int] = set()
    for expr in everything:
        inputs = expr.op == "positions" or (
            expr.inputs and all(id(each) in of_positions for each in expr.inputs)
        )
        if inputs and not expr.weights:
            of_positions.add(id(expr))
    shared: set[int] = set()
    readers: dict[int, set[int | None]] = {}
    for expr in reversed(everything):
        if id(expr) in of_positions and len(readers.get(id(expr), set())) > 1:
            shared.add(id(expr))
        for each in expr.inputs:
            of = readers.get(id(expr), set()) if id(expr) in of_positions else {layer_of(expr)}
            readers.setdefault(id(each), set()).update(of)
    return shared


def _own_columns(everything: Sequence[Expression], numbers: dict[int, int]) -> None:
    """Columns of a value from before the layers belong to the layer that alone reads them.

    Dimensions in another order belong to what reads them, too. So does what the model itself computes
    there, if nothing but the model's own sums reads it.
    """
    readers: dict[int, list[Expression]] = {}
    for expr in everything:
        for each in expr.inputs:
            readers.setdefault(id(each), []).append(expr)
    for expr in reversed(everything):
        read_by = readers.get(id(expr), [])
        read_in = {numbers.get(id(each)) for each in read_by}
        is_mixed = bool(expr.inputs) and all(
            layer_of(each) is None and each.op != "permute" for each in read_by
        )
        if len(read_in) != 1 or not (
            expr.op == "permute" or ((_is_of_columns(expr) or is_mixed) and id(expr) not in numbers)
        ):
            continue
        number = next(iter(read_in))
        if number is not None:
            numbers[id(expr)] = number
        else:
            numbers.pop(id(expr), None)


def _is_of_columns(expr: Expression) -> bool:
    """Whether it is columns, or a function of each number of some."""
    while expr.op in BY_ELEMENT:
        expr = expr.inputs[0]
    return expr.op == "columns"


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """How many of the first ones are the same: all of b, or those up to a sum."""
    same = next((i for i, ops in enumerate(zip(a, b, strict=False)) if ops[0] != ops[1]), min(len(a), len(b)))
    if same < len(b):
        same = max((i + 1 for i in range(same) if a[i] == "add"), default=0)
    return same


def layered(result: Expression) -> Layered:
    """The expressions by layer; ArchitectureError where layers are not alike."""
    everything = in_order(result)
    count = 1 + max((number for expr in everything if (number := layer_of(expr)) is not None), default=-1)
    if count < 1:
        raise ArchitectureError(
            "no layers: wanted modules with numbers in their paths, such as those of a ModuleList"
        )
    numbers = _numbers(everything, count)
    n_blocks, count = count, 1 + max(numbers.values())
    layers = [[expr for expr in everything if numbers.get(id(expr)) == number] for number in range(count)]
    if count % n_blocks or not all(layers):
        raise ArchitectureError(
            f"{layers[-1][0].told}: some of the {n_blocks} modules of layers are called more often than "
            "others: wanted all of them in their order, again and again"
        )
    after_last = _descendants(everything, layers[-1])
    outside = [expr for expr in everything if id(expr) not in numbers]
    before = [expr for expr in outside if id(expr) not in after_last]
    after = [expr for expr in outside if id(expr) in after_last]
    stream, beside = _entering(layers, before)
    beside += [each for each in _read_by(after, before) if each not in (stream, *beside)]
    kept = _kept(layers, after)
    plain = Layered(before, layers, after, stream, result, [0] * count, beside, kept, n_blocks)
    shapes = [_shape_of(plain, number) for number in range(count)]
    unlike = [shape for i, shape in enumerate(shapes) if shape not in shapes[:i]]
    if len(unlike) > MOST_KINDS:
        raise _too_many(plain, shapes)
    return replace(plain, kinds=[unlike.index(shape) for shape in shapes])


def _descendants(everything: Sequence[Expression], of: Sequence[Expression]) -> set[int]:
    descendants = {id(expr) for expr in of}
    for expr in everything:
        if any(id(each) in descendants for each in expr.inputs):
            descendants.add(id(expr))
    return descendants


def _entering(
    layers: Sequence[Sequence[Expression]], before: Sequence[Expression]
) -> tuple[Expression, list[Expression]]:
    """The residual stream, which the first layer alone reads from before the layers; and what others read."""
    known = {id(expr) for expr in before}
    first, *later = (
        list(dict.fromkeys(each for expr in layer for each in expr.inputs if id(each) in known))
        for layer in layers
    )
    beside = list(dict.fromkeys(each for values in later for each in values))
    streams = [each for each in first if len(first) == 1 or each not in beside]
    if not streams:  # later layers read the first one's stream, too
        streams = [each for each in first if each.shape == layers[0][-1].shape]
    if len(streams) != 1:
        raise ArchitectureError(
            f"{first[-1].told if first else layers[0][0].told}: {len(first)} values enter the first layer: "
            "wanted one, the residual stream, and others that later layers read as well"
        )
    return streams[0], beside


def _read_by(readers: Sequence[Expression], of: Sequence[Expression]) -> list[Expression]:
    """The values of some expressions that others read, in the order in which they are read."""
    known = {id(expr) for expr in of}
    return list(dict.fromkeys(each for expr in readers for each in expr.inputs if id(each) in known))


def _kept(layers: Sequence[Sequence[Expression]], after: Sequence[Expression]) -> list[Expression]:
    """Values of a layer that later ones, or what follows the layers, read besides the residual stream."""
    kept: dict[Expression, None] = {}
    for number, layer in enumerate(layers):
        readers = [expr for other in layers[number + 2 :] for expr in other]
        kept |= dict.fromkeys(_read_by([*readers, *(after if number < len(layers) - 1 else ())], layer))
        following = layers[number + 1] if number < len(layers) - 1 else after
        kept |= dict.fromkeys(each for each in _read_by(following, layer) if each is not layer[-1])
    return list(kept)


def _shape_of(model: Layered, number: int) -> list[tuple[object, ...]]:
    """What a layer is, whatever its weights."""
    layer = model.layers[number]
    places: dict[int, object] = {id(each): f"beside {i}" for i, each in enumerate(model.beside)}
    places |= {id(each): f"kept {i}" for i, each in enumerate(model.kept) if each not in layer}
    places[id(model.entering(number))] = "stream"
    shape: list[tuple[object, ...]] = []
    for i, expr in enumerate(layer):
        for each in expr.inputs:
            if id(each) not in places:
                is_behind = any(each in other for other in model.layers[number + 1 :])
                why = (
                    "of a layer behind it: are modules called more than once?"
                    if is_behind
                    else ("of another layer besides the residual stream")
                )
                raise ArchitectureError(f"{expr.told}: layer {number} reads a value {why}")
        own = model.is_of_model(expr)
        roles = tuple(
            sorted((role, weight.shape, weight.rows, weight.source if own else "")
                   for role, weight in expr.weights.items())
        )  # fmt: skip
        columns = model.own_columns(number, expr)
        numbers = (
            (("columns", columns, expr.shape),)
            if columns is not None
            else tuple(
                (name, model.cache_of(number, expr) if name == "keys_of" else value)
                for name, value in expr.numbers.items()
                if name not in OF_EACH_LAYER
            )
        )
        shape.append(
            (
                expr.op,
                tuple(places[id(each)] for each in expr.inputs),
                expr.shape,
                roles,
                numbers,
                model.kept.index(expr) if expr in model.kept else None,
            )
        )
        places[id(expr)] = i
    return shape


def _too_many(model: Layered, shapes: Sequence[list[tuple[object, ...]]]) -> ArchitectureError:
    """The error that names the first operation in which a layer differs from the first one."""
    number = next(i for i, shape in enumerate(shapes) if shape != shapes[0])
    pairs = zip(shapes[0], shapes[number], strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(shapes[0]), len(shapes[number])) - 1)
    return ArchitectureError(
        f"{model.layers[number][at].told}: layer {number} computes otherwise than layer 0; layers of "
        f"more than {MOST_KINDS} kinds cannot be imported"
    )
