"""The values of a traced graph's nodes while it is walked: views of expressions, numbers, parameters.

Knows expressions and a description; nothing of single ops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.aten import SHAPES
from graphml.authoring.importing.dependence import PARAMETERS, POSITIONS, Dependence
from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.evaluation import Evaluator, op_name
from graphml.authoring.importing.expressions import Codes, Expression, Selector, T, View, Weight, whole
from graphml.authoring.importing.region import Recognised, concrete


@dataclass(frozen=True)
class Spread:
    """A parameter of each token's shape, the same one for all tokens."""

    weight: Weight


Value = View | Spread | tuple[View, ...]


@dataclass(frozen=True, eq=False)
class MapTerm:
    """A map with a factor and a weight of each head.

    codes: query * heads * T + head * T + key, in the traced value's shape; weight: a parameter, "" for none.
    """

    match: Recognised
    codes: Codes
    factor: float = 1.0
    weight: str = ""


@dataclass(frozen=True, eq=False)
class PairWeights:
    """The weight of token j for token i in each head, [N].

    rest: the traced shape without both dimensions of tokens; q, k: [N, K], both or neither; of_query, of_key:
    [N, 1] that they are multiplied with; between: [N], whose sum over the tokens after j up to i is in the
    exponent; is_log: before `exp`; is_causal: 0 for later tokens, or of the logarithm less than any number.
    """

    rest: tuple[int, ...]
    factor: NDArray[np.float64]
    decay: NDArray[np.float64]
    q: Expression | None = None
    k: Expression | None = None
    of_query: Expression | None = None
    of_key: Expression | None = None
    between: Expression | None = None
    is_log: bool = False
    is_causal: bool = False

    @property
    def heads(self) -> int:
        """N."""
        return len(self.factor)


class Walked:
    """Values of nodes as views of expressions."""

    def __init__(self, dependence: Dependence, matches: Mapping[str, Recognised]) -> None:
        self.dependence, self.found = dependence, matches
        self.select = Selector()
        self.made_by: dict[int, TracedNode] = {}  # id of an expression -> the node whose value it is
        self.values: dict[str, Value] = {}
        self.rows: set[str] = set()  # values of positions that are walked
        self.neighbours: set[str] = set()  # nodes whose values are of tokens before, too
        self.attended: list[tuple[int, int]] = []  # ids of keys and values, by attention
        self.maps: dict[str, tuple[MapTerm, ...]] = {}  # weights of attention before they meet values
        self.pairs: dict[str, PairWeights] = {}  # weights of pairs of tokens without a softmax
        ids = dependence.description.with_ids(np.zeros(T, np.int64))
        for name in ids:
            self.values[name] = whole(Expression("ids", (), (1,), "", "the ids"), (1, T), 1)
        self.plain = Evaluator(dependence.description, ids)

    def taken(self, name: str, shape: tuple[int, ...] | None = None) -> Expression:
        """A node's value as an expression."""
        return self.select.taken(self.view(name), shape)

    def view(self, name: str) -> View:
        """A node's value."""
        view = self.values.get(name)
        if view is None or isinstance(view, Spread):
            raise ValueError("spreads a parameter over tokens, or reads another value that is not of tokens")
        if isinstance(view, tuple):
            raise ValueError("several values where one is wanted")
        return view

    def shape_of(self, name: str) -> tuple[int | str, ...]:
        """The shape of a node or an input."""
        node = self.dependence.description.nodes.get(name)
        return (1, "tokens") if node is None else node.shape or ()

    def is_walked(self, name: str) -> bool:
        """Whether a value depends on tokens, or on parameters and positions at once."""
        both = self.dependence.kinds[name] >= {PARAMETERS, POSITIONS}
        return self.dependence.on_tokens(name) or both or name in self.rows

    def take_positions(self, name: str) -> None:
        """Have a number for each position walked, where it can be."""

    def made(
        self,
        node: TracedNode,
        op: str,
        inputs: tuple[Expression, ...],
        shape: tuple[int, ...],
        weights: Mapping[str, Weight] | None = None,
        numbers: Mapping[str, Any] | None = None,
    ) -> View:
        """A new expression as the value of a node."""
        return self.laid(node, self.expression(node, op, inputs, shape, weights, numbers))

    def expression(
        self,
        node: TracedNode,
        op: str,
        inputs: tuple[Expression, ...],
        shape: tuple[int, ...],
        weights: Mapping[str, Weight] | None = None,
        numbers: Mapping[str, Any] | None = None,
    ) -> Expression:
        """A new expression with the values of a node, if in another order."""
        expression = Expression(op, inputs, shape, node.path, node.told, weights or {}, numbers or {})
        kept = self.select.kept(expression)
        self.made_by.setdefault(id(kept), node)
        return kept

    def laid(self, node: TracedNode, expression: Expression) -> View:
        """An expression in the shape of a node's value."""
        shape = node.shape or ()
        axes = [i for i, size in enumerate(shape) if isinstance(size, str)]
        if not axes and shape and self.dependence.description.length in shape:
            raise ValueError(
                f"was traced at one length alone, {self.dependence.description.length} tokens: the model's "
                "Python depends on the length, as loops over tokens do (recurrent layers)"
            )
        if len(axes) != 1:
            raise ValueError(f"a value of shape {list(shape)}: wanted one dimension of tokens")
        return whole(expression, concrete(shape, T), axes[0])

    def number(self, value: Any) -> float | None:
        """The number that an argument is; None if it is a tensor of several."""
        if isinstance(value, Mapping) and "node" in value:
            name = value["node"]
            if self.dependence.kinds[name]:
                return None
            array = np.asarray(self.plain.value(name))
            return float(array.reshape(-1)[0]) if array.size == 1 else None
        if isinstance(value, Mapping):
            return float(value["number"]) if "number" in value else None
        return float(value) if isinstance(value, int | float) else None

    def weight(self, name: str, transposed: bool = False) -> Weight:
        """A value of parameters alone."""
        if self.dependence.is_positions(name):
            raise ValueError(
                "combines tokens with values of positions that are neither a rope of whole heads, with "
                "pairs in a known order, nor numbers of each position that graphml's ops compute"
            )
        if not self.dependence.is_parameters(name):
            raise ValueError("reads a value that is neither of tokens nor of parameters alone")
        shape = np.asarray(self.plain.value(name)).shape
        if not transposed:
            return Weight(name, shape)
        order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        return Weight(name, tuple(shape[i] for i in order), order)

    def moved(self, node: TracedNode, codes: Codes) -> Any:
        """What an op that moves elements makes of codes."""
        args = {key: self._plain(argument) for key, argument in node.args.items()}
        source = next(key for key in ("self", "input") if key in args)
        return SHAPES[op_name(node)]({**args, source: codes, "dtype": None})

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Mapping) and "node" in value:
            return None if self.is_walked(value["node"]) else self.plain.value(value["node"])
        return [self._plain(inner) for inner in value] if isinstance(value, list) else value
