"""Evaluates a description in NumPy, as a whole or a part of it on given values, in float64.

Knows names and arguments; what ops compute is in `aten`.
"""

from __future__ import annotations

import math
import operator
import zlib
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.aten import KINDS, NUMBERS, SHAPES, SIZE_ONLY
from graphml.authoring.importing.description import TracedInput, TracedModule, TracedNode
from graphml.authoring.importing.recurrences import RECURRENCES
from graphml.errors import ArchitectureError

Array = NDArray[Any]
Parameters = Callable[[TracedInput], Array]
OPS = {**NUMBERS, **SHAPES, **RECURRENCES}
PYTHON: Mapping[str, Callable[..., Any]] = {
    "python.getitem": operator.getitem,
    "python.add": operator.add,
    "python.sub": operator.sub,
    "python.mul": operator.mul,
    "python.floordiv": operator.floordiv,
    "python.mod": operator.mod,
    "python.truediv": operator.truediv,
    "python.neg": operator.neg,
    "python.pow": operator.pow,
    "python.sym_max": max,
    "python.sym_min": min,
    "python.sym_int": int,
    "python.sym_float": float,
    "python.le": operator.le,
    "python.lt": operator.lt,
    "python.ge": operator.ge,
    "python.gt": operator.gt,
    "python.eq": operator.eq,
    "python.ne": operator.ne,
    "python.sym_sum": lambda values: sum(values),
}
KEPT_NUMBERS = 1 << 16  # of a random parameter that is kept for the next evaluation
IGNORED = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range_for_size", "sym_constrain_range")


ALIASES = {"multiply": "mul", "subtract": "sub", "divide": "div", "greater": "gt", "greater_equal": "ge",
           "less": "lt", "less_equal": "le", "not_equal": "ne"}  # fmt: skip
"""Torch's names of one op."""


def op_name(node: TracedNode) -> str:
    """`mul` of `aten.mul.Tensor` and `multiply`; in-place ops without their underscore."""
    parts = node.op.split(".")
    if parts[0] == "python":
        return node.op
    name = parts[1] if len(parts) > 1 else node.op
    plain = name.rstrip("_")
    plain = ALIASES.get(plain, plain)
    return plain if name not in OPS and plain in OPS else name


def is_ignored(node: TracedNode) -> bool:
    """Whether the node checks something and has no value."""
    return op_name(node) in IGNORED


def random_parameter(of: TracedInput) -> Array:
    """Float64 numbers that depend on the name alone, read-only: matrices keep sizes, vectors are about 1."""
    generator = _kept_random if math.prod(of.shape) <= KEPT_NUMBERS else _random
    return generator(of.name, tuple(of.shape))


def _random(name: str, shape: tuple[int, ...]) -> Array:
    numbers = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    parameter: Array = 1.0 + 0.3 * numbers if len(shape) < 2 else numbers / shape[-1] ** 0.5
    parameter.setflags(write=False)
    return parameter


_kept_random = lru_cache(maxsize=128)(_random)  # an import evaluates parts of a module hundreds of times


class Evaluator:
    """Values of nodes. values: by name, which replace what computes them; parameters: their values."""

    def __init__(
        self, description: TracedModule, values: Mapping[str, Any], parameters: Parameters = random_parameter
    ) -> None:
        self.description = description
        self.parameters = parameters
        self.held: dict[str, Any] = dict(values)

    def value(self, name: str) -> Any:
        """The value of a node or an input; whatever it needs is computed first."""
        for needed in _needed(self.description, [name], self.held):
            self.held[needed] = self._computed(needed)
        return self.held[name]

    def _computed(self, name: str) -> Any:
        leaf = self.description.inputs.get(name)
        if leaf is None:
            return self._op(self.description.nodes[name])
        if leaf.kind == "parameter":
            return self.parameters(leaf)
        if leaf.kind == "constant":
            return _double(self.description.values[leaf.name])
        raise ArchitectureError(f"input {name!r} of the traced module has no value here")

    def _op(self, node: TracedNode) -> Any:
        if is_ignored(node):
            return None
        name = op_name(node)
        sized = _sized(self.description, node)
        if sized in self.held:
            sized = None
        known = self.held if sized is None else ChainMap({sized: self._of_its_size(sized)}, self.held)
        a = {key: self._argument(argument, known) for key, argument in node.args.items()}
        try:
            if name in PYTHON:
                return PYTHON[name](*a.values())
            return OPS[name](a)
        except KeyError as error:
            missing = f"op {name!r}" if name not in OPS else f"without argument {error}"
            raise ArchitectureError(f"{node.told}: {missing} is not known to `graphml import`") from None
        except (ValueError, TypeError, IndexError) as error:
            raise ArchitectureError(f"{node.told}: cannot be evaluated: {error}") from None

    def _argument(self, value: Any, known: Mapping[str, Any]) -> Any:
        if isinstance(value, Mapping):
            if "node" in value:
                return known[value["node"]]
            return float(value["number"]) if "number" in value else value
        return [self._argument(argument, known) for argument in value] if isinstance(value, list) else value

    def _of_its_size(self, name: str) -> Array:
        """An array of the shape and kind of a node's value, without its numbers: it takes no memory."""
        node = self.description.nodes[name]
        leaves = self.description.inputs
        ids = next(leaf for leaf in leaves if leaves[leaf].kind == "ids" and leaf in self.held)
        n_tokens = np.shape(self.held[ids])[-1]
        shape = [n_tokens if isinstance(size, str) else size for size in node.shape or ()]
        return np.broadcast_to(np.zeros((), KINDS.get(node.dtype, np.float64)), shape)


def _double(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _sized(description: TracedModule, node: TracedNode) -> str | None:
    """The operand of which an op reads the shape alone, where that is known for any number of tokens."""
    if op_name(node) not in SIZE_ONLY or not node.operands:
        return None
    source = description.nodes.get(node.operands[0])
    if source is None or source.shape is None:
        return None
    return source.name if all(isinstance(size, int) or size.isidentifier() for size in source.shape) else None


def _needed(description: TracedModule, wanted: Iterable[str], held: Mapping[str, Any]) -> list[str]:
    """What must be computed for these, in order."""
    needed: set[str] = set()
    stack = [wanted_name for wanted_name in wanted if wanted_name not in held]
    while stack:
        name = stack.pop()
        if name in needed:
            continue
        needed.add(name)
        node = description.nodes.get(name)
        if node is not None:
            sized = _sized(description, node)
            stack += [
                each for each in node.operands if each not in held and each not in needed and each != sized
            ]
    leaves = [name for name in description.inputs if name in needed]
    return leaves + [name for name in description.nodes if name in needed]
