"""From a traced graph to expressions: batches, views and transposes vanish, recognised parts become one op.

What works on each token alone and has an op of graphml is taken over; any other op is refused by name, module
and source line. Knows torch's ops; nothing of layers.
"""

from __future__ import annotations

import numpy as np

from graphml.authoring.importing.aten import MOVES, SAME
from graphml.authoring.importing.attention_maps import attend, attended_by_maps, combined_maps, softmax_map
from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.entries.rotation import pair_order
from graphml.authoring.importing.evaluation import op_name
from graphml.authoring.importing.expressions import Expression, T, View, Weight
from graphml.authoring.importing.operations import ALONG_TEXT, HANDLERS, scaled
from graphml.authoring.importing.pair_weights import pair_weights, summed
from graphml.authoring.importing.region import Recognised
from graphml.authoring.importing.token_shifts import (
    joined_along_text,
    of_own_tokens,
    of_partial_text,
    token_axis,
)
from graphml.authoring.importing.walked import Spread, Value, Walked
from graphml.errors import ArchitectureError


class Walk(Walked):
    """Values of nodes as views of expressions."""

    def result(self) -> Expression:
        """The logits."""
        for node in self._order():
            try:
                if not self._is_map(node):
                    self.values[node.name] = self._value(node)
            except ValueError as error:
                raise ArchitectureError(f"{node.told}: {error}") from None
        last = self.dependence.description.result
        try:
            return self.taken(last)
        except ValueError as error:
            raise ArchitectureError(f"{self.dependence.description.nodes[last].told}: {error}") from None

    def _order(self) -> list[TracedNode]:
        """What must be walked: recognised parts stand for all that is inside them."""
        wanted, stack = set(), [self.dependence.description.result]
        while stack:
            name = stack.pop()
            if name in wanted or name not in self.dependence.description.nodes or not self.is_walked(name):
                continue
            wanted.add(name)
            match = self.found.get(name)
            stack += match.entries.values() if match else self.dependence.description.nodes[name].operands
        return [node for name, node in self.dependence.description.nodes.items() if name in wanted]

    def take_positions(self, name: str) -> None:
        """Walk what leads to a number for each position, so that it is a value of tokens; else leave it."""
        nodes, before = self.dependence.description.nodes, []
        for leading in reversed(self.dependence.description.leading_to(name)):
            if leading in nodes and nodes[leading].shape and self.dependence.is_positions(leading):
                before.append(nodes[leading])
        rows = {node.name for node in before if _is_row(node.shape or ())}
        if not self.dependence.is_positions(name) or len(rows) < len(before):
            return
        self.rows |= rows
        try:
            for node in (each for each in nodes.values() if each.name in rows):
                self.values[node.name] = self._value(node)
        except ValueError:
            self.rows -= rows  # as other values of positions

    def _is_map(self, node: TracedNode) -> bool:
        """Take over a softmax map, or what is made of some: a value for each pair of tokens; else False."""
        match = self.found.get(node.name)
        if match is not None and match.op == "softmax map":
            self.maps[node.name] = softmax_map(match, node.shape or ())
        elif self.dependence.is_mixing(node.name) and any(each in self.maps for each in node.operands):
            self.maps[node.name] = combined_maps(self, node)
        elif self.dependence.is_mixing(node.name) and match is None:
            self.pairs[node.name] = pair_weights(self, node)
        return node.name in self.maps or node.name in self.pairs

    def _positions(self, node: TracedNode) -> View:
        """The numbers of the positions, from any first one on."""
        counted = np.asarray(self.plain.value(node.name)).reshape(-1)
        if not np.array_equal(counted, np.arange(T) + counted[0]):
            raise ValueError("positions that do not follow one another")
        positions = self.made(node, "positions", (), (1,))
        return scaled(self, node, positions.of, 1.0, float(counted[0]))

    def _value(self, node: TracedNode) -> Value:
        value = self._of_part(node)
        if not isinstance(value, View):
            return value
        value = of_own_tokens(self, node, value)
        if value.of.op == "conv":
            self.neighbours.add(node.name)
        return value

    def _of_part(self, node: TracedNode) -> Value:
        """The value of a node that may read parts of the text."""
        match, name = self.found.get(node.name), op_name(node)
        if name in MOVES or name in ALONG_TEXT or name in ("python.getitem", "arange", "index"):
            return self._of_text(node)
        names = node.operands if match is None else match.entries.values()
        value = of_partial_text(self, node, names, self._of_text)
        if value is not None and match is not None and match.op in ("attend", "rope"):
            raise ValueError(f"{match.op} of a part of the text")
        return self._of_text(node) if value is None else value

    def _of_text(self, node: TracedNode) -> Value:
        match = self.found.get(node.name)
        if match is not None:
            return self._recognised(node, match)
        name = op_name(node)
        if any(operand in self.maps for operand in node.operands):
            return attended_by_maps(self, node)
        if any(operand in self.pairs for operand in node.operands):
            return summed(self, node)
        if name == "arange":
            return self._positions(node)
        if name == "python.getitem":
            return self.values[node.operands[0]][node.args["1"]]  # type: ignore[index,no-any-return]
        if name in MOVES or (name == "index" and not any(map(self.is_walked, node.operands[1:]))):
            return self._moved(node)
        if name in ("cat", "stack"):
            return self._joined(node, name == "stack")
        for ops, handler in HANDLERS.items():
            if name in ops:
                return handler(self, node)
        why = "mixes tokens" if self.dependence.is_mixing(node.name) else "has no counterpart"
        raise ValueError(f"{why}: it was recognised as nothing that graphml has an op for")

    def _moved(self, node: TracedNode) -> Value:
        """A view with the op done on its codes."""
        source = next(node.args[key]["node"] for key in ("self", "input") if key in node.args)
        spread = self._spread(node, source)
        if spread is not None:
            return spread
        view = self.view(source)
        moved = self.moved(node, view.codes)
        return (
            tuple(View(view.of, codes) for codes in moved)
            if isinstance(moved, tuple)
            else View(view.of, moved)
        )

    def _spread(self, node: TracedNode, source: str) -> Spread | None:
        """A parameter of a token's shape that is repeated for all tokens; None for another value."""
        known = self.values.get(source)
        if isinstance(known, Spread) and op_name(node) in SAME:
            return known
        if op_name(node) != "expand" or not self.dependence.is_parameters(source):
            return None
        weight, shape = self.weight(source), node.shape or ()
        rest = tuple(size for size in weight.shape if size != 1) or (1,)
        is_last = shape[len(shape) - len(rest) :] == rest and isinstance(shape[-len(rest) - 1], str)
        return Spread(Weight(weight.source, rest)) if is_last else None

    def _joined(self, node: TracedNode, stacked: bool) -> Value:
        """Views along the text, of one expression, or of several in each token."""
        names = [tensor["node"] for tensor in node.args["tensors"]]
        dim = node.args.get("dim", 0) % len(node.shape or ())
        if not stacked and dim == token_axis(node):
            return joined_along_text(self, node)
        views = [self.view(name) for name in names if self.is_walked(name)]
        if len(views) != len(names):
            raise ValueError("joins tokens with constants")
        if stacked:
            views = [View(view.of, np.expand_dims(view.codes, dim)) for view in views]
        if len({id(view.of) for view in views}) == 1:
            return View(views[0].of, np.concatenate([view.codes for view in views], dim))
        parts, orders = [], []
        for view in views:
            order = np.arange(view.codes.shape[-1])
            if view.of.op == "rope" and dim == view.codes.ndim - 1:  # its pairs may be in another order
                order = np.argsort(view.elements.reshape(-1, len(order))[0])
            orders.append(np.argsort(order))
            view = View(view.of, view.codes[..., order])
            elements = view.elements
            at = dim - (view.axis is not None and view.axis < dim)
            rows = [size for size in elements.shape[:at] if size != 1]
            parts.append(self.select.taken(view, (*rows, int(np.prod(elements.shape[at:])))))
        joined = parts[0]
        for part in parts[1:]:
            shape = (*joined.shape[:-1], joined.shape[-1] + part.shape[-1])
            joined = self.select.kept(Expression("concat", (joined, part), shape, node.path, node.told))
        laid = self.laid(node, joined)
        if dim < laid.codes.ndim - 1:
            return laid
        starts = np.cumsum([0, *map(len, orders)])
        columns = np.concatenate([order + start for order, start in zip(orders, starts, strict=False)])
        return View(laid.of, laid.codes[..., columns])

    def _recognised(self, node: TracedNode, match: Recognised) -> View:
        transposed = match.numbers.get("transposed", ())
        weights = {role: self.weight(name, role in transposed) for role, name in match.weights.items()}
        if match.op == "attend":
            return self._attention(node, match)
        view = self.view(match.entries["x"])
        shape = None
        if match.op == "rope":
            return self._rotated(node, match, view)
        if match.op in ("rms_norm", "layer_norm", "l2_norm"):
            rest = [size for size in view.elements.shape[:-1] if size != 1]
            shape = (*rest, view.elements.shape[-1])
            weights = {role: Weight(weight.source, shape[-1:]) for role, weight in weights.items()}
        x = self.select.taken(view, shape)
        return self.made(node, match.op, (x,), x.shape, weights, match.numbers)

    def _rotated(self, node: TracedNode, match: Recognised, view: View) -> View:
        """Rope of heads; of heads that are repeated, each is rotated once."""
        elements = view.elements
        rows = elements.reshape(-1, elements.shape[-1]).tolist()
        unique = list(dict.fromkeys(map(tuple, rows)))
        x = self.select.of_rows(view.of, np.array(unique))
        numbers = {name: number for name, number in match.numbers.items() if name != "wrote"}
        rotated = Expression("rope", (x,), x.shape, node.path, node.told, {}, numbers)
        kept = self.select.kept(rotated)
        places = {row: i for i, row in enumerate(unique)}
        heads = np.array([places[tuple(row)] for row in rows])[:, None] * elements.shape[-1]
        order = pair_order(numbers["mode"], match.numbers["wrote"], numbers["n_rot"], elements.shape[-1])
        chosen = (heads + order).reshape(elements.shape)
        axis = view.axis or 0
        tokens = np.arange(T).reshape([T if i == axis else 1 for i in range(view.codes.ndim)])
        return View(kept, tokens * kept.size + np.expand_dims(chosen, axis))

    def _attention(self, node: TracedNode, match: Recognised) -> View:
        counts = [match.numbers[count] for count in ("head", "head_kv", "head_kv")]
        views = [self.view(match.entries[role]) for role in "qkv"]
        rows = [view.elements.reshape(count, -1) for view, count in zip(views, counts, strict=True)]
        y = attend(self, node, match, *zip(views, rows, strict=True))
        self.made_by.setdefault(id(y), node)
        return self.laid(node, y)


def _is_row(shape: tuple[int | str, ...]) -> bool:
    """Whether a value has one number for each position."""
    return sum(isinstance(size, str) for size in shape) == 1 and all(
        size == 1 for size in shape if not isinstance(size, str)
    )
