"""Torch's ops that have a counterpart in graphml: of each number, of two values, products, rows of tables.

A truth value is a number, 1 or 0. Each handler reads its operands from a walk and returns the node's value; a
ValueError says why it cannot. Knows ops; nothing of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from graphml.authoring.importing.convolutions import convolution
from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.evaluation import op_name
from graphml.authoring.importing.expressions import Expression, T, View, Weight, whole
from graphml.authoring.importing.pair_weights import running_sum
from graphml.authoring.importing.parameter_values import UNARY, computed
from graphml.authoring.importing.position_tables import position_table
from graphml.authoring.importing.products import einsum, product, product_of_parts
from graphml.authoring.importing.recurrent_layers import decayed, delta_ruled, scanned
from graphml.authoring.importing.region import concrete
from graphml.authoring.importing.token_shifts import padded
from graphml.authoring.importing.walked import Spread, Value, Walked
from graphml.authoring.importing.whole_numbers import check_whole, most_tokens, remainder

COMMUTATIVE = ("add", "mul", "maximum", "minimum", "equal")
OVER_LAST = {"softmax": "softmax", "_softmax": "softmax", "cumsum": "cumsum"}


def unary(walk: Walked, node: TracedNode) -> View:
    """A function of each number."""
    if node.args.get("decimals"):
        raise ValueError(f"rounds to {node.args['decimals']} decimals")
    if node.args.get("beta", 1) != 1:
        raise ValueError(f"softplus with a beta of {node.args['beta']}")
    x = walk.taken(node.operands[0])
    return walk.made(node, UNARY[op_name(node)], (x,), x.shape)


def less_one(walk: Walked, node: TracedNode) -> View:
    """exp(x) - 1."""
    x = walk.taken(node.operands[0])
    risen = walk.select.kept(Expression("exp", (x,), x.shape, node.path, node.told))
    return scaled(walk, node, risen, 1.0, -1.0)


def of_halves(walk: Walked, node: TracedNode) -> View:
    """ELU, leaky ReLU: another function of numbers below 0."""

    def of(op: str, x: Expression, **numbers: float) -> Expression:
        return walk.select.kept(Expression(op, (x,), x.shape, node.path, node.told, numbers=numbers))

    x = walk.taken(node.args["self"]["node"])
    below = of("minimum", x, number=0.0)
    if op_name(node) == "elu":
        if node.args.get("scale", 1) != 1 or node.args.get("input_scale", 1) != 1:
            raise ValueError("ELU with a scale")
        alpha = float(node.args.get("alpha", 1))
        below = of("scale", of("exp", below), factor=alpha, offset=-alpha)
    else:
        below = of("scale", below, factor=float(node.args.get("negative_slope", 0.01)), offset=0.0)
    return walk.made(node, "add", (of("relu", x), below), x.shape)


def log_sigmoid(walk: Walked, node: TracedNode) -> View:
    """Less than 0: -softplus(-x)."""
    x = walk.taken(node.operands[0])
    for op in ("neg", "softplus"):
        x = walk.select.kept(Expression(op, (x,), x.shape, node.path, node.told))
    return walk.made(node, "neg", (x,), x.shape)


def log_of_more(walk: Walked, node: TracedNode) -> View:
    """log(1 + x)."""
    x = walk.taken(node.operands[0])
    numbers = {"factor": 1.0, "offset": 1.0}
    more = walk.select.kept(Expression("scale", (x,), x.shape, node.path, node.told, numbers=numbers))
    return walk.made(node, "log", (more,), x.shape)


def scaled(walk: Walked, node: TracedNode, x: Expression, factor: float, offset: float) -> View:
    """X * factor + offset; x itself where that is nothing."""
    if factor == 1.0 and offset == 0.0:
        return walk.laid(node, x)
    numbers = {"factor": factor, "offset": offset}
    return walk.made(node, "scale", (x,), x.shape, numbers=numbers)


def arithmetic(walk: Walked, node: TracedNode) -> View:
    """A sum, difference, product or quotient of two values, or of a value and a number."""
    op = {"rsub": "sub", "true_divide": "div"}.get(op_name(node), op_name(node))
    a, b, alpha = node.args["self"], node.args["other"], node.args.get("alpha", 1)
    if op_name(node) == "rsub":
        a, b = b, a
    number_a, number_b = walk.number(a), walk.number(b)
    if number_b is not None:
        x = walk.taken(a["node"])
        of_b = {
            "add": (1.0, number_b * alpha),
            "sub": (1.0, -number_b * alpha),
            "mul": (number_b, 0.0),
            "div": (1.0 / number_b if number_b else 0.0, 0.0),
        }
        return scaled(walk, node, x, *of_b[op])
    if number_a is not None:
        x = walk.taken(b["node"])
        if op == "div":
            raise ValueError("divides a number by a value of tokens")
        of_a = {"add": (1.0, number_a), "sub": (-1.0, number_a), "mul": (number_a, 0.0)}
        return scaled(walk, node, x, *of_a[op])
    if alpha != 1:
        raise ValueError(f"adds with a factor of {alpha}")
    return combined(walk, node, op, a["node"], b["node"])


def combined(walk: Walked, node: TracedNode, op: str, a: str, b: str) -> View:
    """An op of two values, of which one may be a parameter, and the smaller one is repeated."""
    for name in (a, b):
        if not walk.is_walked(name):
            walk.take_positions(name)
        table = None if walk.is_walked(name) else position_table(walk, node, name)
        if table is not None:
            walk.values[name] = table
            walk.rows.add(name)
    if not walk.is_walked(a) or isinstance(walk.values.get(a), Spread):
        if op not in COMMUTATIVE:
            raise ValueError(f"{op} of a parameter and a value of tokens, in this order")
        a, b = b, a
    full = tuple(size for size in node.shape or () if not isinstance(size, str) and size != 1) or (1,)
    if op == "mul" and walk.dependence.is_constant(b):
        return _with_constants(walk, node, _in_full(walk, node, a), b)
    if not walk.is_walked(b) or isinstance(walk.values.get(b), Spread):
        return _with_parameter(walk, node, op, _in_full(walk, node, a), b, full)
    first, second = operand(walk, node, a), operand(walk, node, b)
    if max(first.size, second.size) != int(np.prod(full)):  # both are repeated
        first = _in_full(walk, node, a)
    if first.size < second.size and op in COMMUTATIVE:
        first, second = second, first
    elif first.size < second.size and op in ("less", "less_equal"):  # a < b is -b < -a
        first, second = (
            walk.select.kept(Expression("neg", (side,), side.shape, node.path, node.told))
            for side in (second, first)
        )
    return walk.made(node, op, (first, second), first.shape)


def _in_full(walk: Walked, node: TracedNode, name: str) -> Expression:
    """An operand with all elements of the result, repeated along the dimensions that it has not."""
    view = walk.view(name)
    return walk.select.taken(View(view.of, np.broadcast_to(view.codes, concrete(node.shape or (), T))))


def _with_parameter(
    walk: Walked, node: TracedNode, op: str, x: Expression, name: str, full: tuple[int, ...]
) -> View:
    """An op of a value of tokens and a parameter, or what is computed of parameters."""
    spread, of_parameters = walk.values.get(name), None
    if not isinstance(spread, Spread):
        of_parameters = computed(walk, node, name)
        if of_parameters is None:
            return _with_weight(walk, node, op, x, name, full)
        rows = walk.weight(name).shape[-2:]
        if len(rows) == 2 and rows[1] == 1 < rows[0] and full[-2:-1] == rows[:1]:  # a number of each row
            column = Expression("column", (of_parameters,), rows, node.path, node.told)
            return walk.made(node, op, (x, walk.select.kept(column)), x.shape)
    if x.shape != full or (of_parameters and of_parameters.shape not in ((), (1,), full[-1:])):
        raise ValueError("a value of tokens is repeated along a parameter")
    if isinstance(spread, Spread):
        return walk.made(node, op, (x,), x.shape, {"weight": spread.weight})
    return walk.made(node, op, (x, of_parameters) if of_parameters else (x,), x.shape)


def _with_constants(walk: Walked, node: TracedNode, x: Expression, name: str) -> View:
    """A value of tokens whose elements have a constant factor each, such as a muP vector."""
    shape = concrete(node.shape or (), T)
    values = np.broadcast_to(np.asarray(walk.plain.value(name), np.float64), shape)
    rows = np.moveaxis(values, next(i for i, size in enumerate(node.shape or ()) if isinstance(size, str)), 0)
    if np.any(rows != rows[:1]):
        raise ValueError("combines tokens with a constant for each position")
    numbers = {"values": tuple(float(f"{value:.9g}") for value in rows[0].reshape(-1))}
    flat = walk.select.shaped(x, (x.size,))
    return walk.made(node, "factors", (flat,), flat.shape, numbers=numbers)


def operand(walk: Walked, node: TracedNode, name: str) -> Expression:
    """An operand in the shape of the result, with 1 for dimensions along which it is the same."""
    view = walk.view(name)
    ndim = len(node.shape or ())
    codes = view.codes.reshape((1,) * (ndim - view.codes.ndim) + view.codes.shape)
    for axis, wanted in enumerate(node.shape or ()):
        first = np.take(codes, [0], axis)
        if (
            not isinstance(wanted, str)
            and wanted != 1
            and np.array_equal(codes, np.broadcast_to(first, codes.shape))
        ):
            codes = first
    kept = View(view.of, codes)
    tokens = kept.axis
    wanted_axis = next(i for i, size in enumerate(node.shape or ()) if isinstance(size, str))
    if tokens != wanted_axis:
        raise ValueError("combines values of tokens in another order")
    sizes = [extent for i, extent in enumerate(codes.shape) if i != tokens and (node.shape or ())[i] != 1]
    return walk.select.taken(kept, tuple(sizes) or (1,))


def _with_weight(
    walk: Walked, node: TracedNode, op: str, x: Expression, name: str, full: tuple[int, ...]
) -> View:
    weight = walk.weight(name)
    axis = next(i for i, size in enumerate(node.shape or ()) if isinstance(size, str)) - len(node.shape or ())
    shape = list(weight.shape)
    if len(shape) >= -axis:
        if shape[axis] != 1:
            raise ValueError("combines tokens with a parameter for each position")
        del shape[axis]
    while shape and shape[0] == 1:
        del shape[0]
    if x.shape != full:
        raise ValueError("a value of tokens is repeated along a parameter")
    description = walk.dependence.description
    leaves = [description.inputs[each] for each in description.parameters_of(name)]
    if len(shape) > 1 and tuple(shape) == full and [leaf.shape for leaf in leaves] == [(x.size,)]:
        x, shape = walk.select.shaped(x, (x.size,)), [x.size]  # as the checkpoint has it, in one dimension
    return walk.made(node, op, (x,), x.shape, {"weight": Weight(name, tuple(shape) or (1,))})


def embedding(walk: Walked, node: TracedNode) -> View | Spread:
    """Rows of a table by the ids, or by positions."""
    indices = node.args["indices"]["node"]
    weight = walk.weight(node.args["weight"]["node"])
    if walk.is_walked(indices):
        ids = walk.taken(indices)
        if ids.op == "ids":
            return walk.made(node, "embed", (), weight.shape[1:], {"weight": weight})
        check_whole(walk, ids)
        shape = (*(() if ids.shape == (1,) else ids.shape), *weight.shape[1:])
        longest = most_tokens(walk, ids, weight.shape[0])
        numbers = {} if longest is None else {"context": longest}
        return walk.made(node, "table_rows", (ids,), shape, {"weight": weight}, numbers)
    if not walk.dependence.is_positions(indices):
        raise ValueError("rows of a table by something else than ids or positions")
    positions = np.asarray(walk.plain.value(indices)).reshape(-1)
    first = int(positions[0])
    if np.all(positions == first):
        return Spread(Weight(weight.source, (1, weight.shape[1]), rows=(first,)))
    if not np.array_equal(positions, np.arange(T) + first):
        raise ValueError("rows of a table by positions that do not follow one another")
    rows = tuple(range(first, weight.shape[0])) if first else None
    kept = Weight(weight.source, (weight.shape[0] - first, weight.shape[1]), rows=rows)
    return walk.made(node, "position_rows", (), weight.shape[1:], {"weight": kept})


def power(walk: Walked, node: TracedNode) -> View:
    """Squares and roots."""
    x, exponent = walk.taken(node.operands[0]), walk.number(node.args["exponent"])
    op = {2.0: "sqr", 0.5: "sqrt"}.get(exponent or 0.0)
    if op is None:
        raise ValueError(f"a power of {exponent}")
    return walk.made(node, op, (x,), x.shape)


def clamped(walk: Walked, node: TracedNode) -> View:
    """Numbers within limits."""
    x = walk.taken(node.args["self"]["node"])
    low, high = (walk.number(node.args.get(bound)) for bound in ("min", "max"))
    numbers = {"low": float("-inf") if low is None else low, "high": float("inf") if high is None else high}
    return walk.made(node, "clamp", (x,), x.shape, numbers=numbers)


def reduced(walk: Walked, node: TracedNode) -> View:
    """Softmax, running sums, or the sum, mean or an extreme, over one dimension."""
    name, view = op_name(node), walk.view(node.args["self"]["node"])
    dims, ndim = node.args.get("dim"), view.codes.ndim
    dim = dims[0] if isinstance(dims, list) and len(dims) == 1 else dims
    if name == "cumsum" and isinstance(dim, int) and view.axis == dim % ndim:
        return running_sum(walk, node)
    if not isinstance(dim, int) or view.axis in (None, dim % ndim):
        raise ValueError("over the tokens, or over several dimensions")
    ordered = View(view.of, np.moveaxis(view.codes, dim, -1))
    elements = ordered.elements
    x = walk.select.taken(ordered, (*(size for size in elements.shape[:-1] if size != 1), elements.shape[-1]))
    if name in OVER_LAST:
        y = walk.expression(node, OVER_LAST[name], (x,), x.shape)
        laid = whole(y, ordered.codes.shape, ordered.axis or 0)
        return View(y, np.moveaxis(laid.codes, -1, dim))
    if name in ("amax", "amin"):
        return walk.made(node, f"{name[1:]}_rows", (x,), (*x.shape[:-1], 1))
    if name in ("std", "var"):
        return _spread(walk, node, x)
    total = walk.select.kept(Expression("sum_rows", (x,), (*x.shape[:-1], 1), node.path, node.told))
    return scaled(walk, node, total, 1.0 / x.shape[-1] if name == "mean" else 1.0, 0.0)


def _spread(walk: Walked, node: TracedNode, x: Expression) -> View:
    """The standard deviation or variance over the last dimension."""
    less = node.args.get("correction", 1 if node.args.get("unbiased", True) else 0)
    count, ends = x.shape[-1], (*x.shape[:-1], 1)

    def of(op: str, *inputs: Expression, shape: tuple[int, ...], **numbers: float) -> Expression:
        return walk.select.kept(Expression(op, inputs, shape, node.path, node.told, numbers=numbers))

    if not isinstance(less, int) or less >= count:
        raise ValueError(f"a variance of {count} numbers less {less}")
    mean = of("scale", of("sum_rows", x, shape=ends), shape=ends, factor=1.0 / count, offset=0.0)
    squares = of("sqr", of("sub", x, mean, shape=x.shape), shape=x.shape)
    total = of("sum_rows", squares, shape=ends)
    variance = scaled(walk, node, total, 1.0 / (count - less), 0.0)
    return variance if op_name(node) == "var" else walk.made(node, "sqrt", (variance.of,), ends)


# Torch's name -> graphml's, and whether the operands change places.
COMPARED = {
    "lt": ("less", False),
    "le": ("less_equal", False),
    "gt": ("less", True),
    "ge": ("less_equal", True),
    "eq": ("equal", False),
    "ne": ("equal", False),
    "maximum": ("maximum", False),
    "minimum": ("minimum", False),
    "max": ("maximum", False),
    "min": ("minimum", False),
}


def compared(walk: Walked, node: TracedNode) -> View:
    """A comparison, or the larger or smaller of two values, or of a value and a number."""
    op, turned = COMPARED[op_name(node)]
    if "other" not in node.args:
        raise ValueError("an extreme of all numbers, or its place")
    if op_name(node) == "ne":
        equal = combined_or_number(walk, node, op, turned).of
        return walk.laid(node, _inverted(walk, node, equal))
    return combined_or_number(walk, node, op, turned)


def combined_or_number(walk: Walked, node: TracedNode, op: str, turned: bool) -> View:
    """An op of two values, or of a value and a number; turned: the other one first."""
    a, b = node.args["self"], node.args["other"]
    number_a, number_b = walk.number(a), walk.number(b)
    number = number_b if number_a is None else number_a
    if number is None:
        first, second = (b, a) if turned else (a, b)
        return combined(walk, node, op, first["node"], second["node"])
    x = walk.taken(a["node"] if number_a is None else b["node"])
    if op.startswith("less") and turned is (number_a is None):  # number < x is -x < -number
        x, number = _negated(walk, node, x), -number
    return walk.made(node, op, (x,), x.shape, numbers={"number": number})


def _negated(walk: Walked, node: TracedNode, x: Expression) -> Expression:
    return walk.select.kept(Expression("neg", (x,), x.shape, node.path, node.told))


def _inverted(walk: Walked, node: TracedNode, mask: Expression) -> Expression:
    """1 where the mask is 0, else 0."""
    numbers = {"number": 0.0}
    return walk.select.kept(Expression("equal", (mask,), mask.shape, node.path, node.told, numbers=numbers))


def chosen(walk: Walked, node: TracedNode) -> View:
    """One value where a mask of tokens is true, else the other, of which one may be a number."""
    if op_name(node) == "masked_fill":
        condition, yes, no = (node.args[name] for name in ("mask", "value", "self"))
    else:
        condition, yes, no = (node.args[name] for name in ("condition", "self", "other"))
    if not walk.is_walked(condition["node"]):
        raise ValueError("chooses by a mask that does not depend on tokens")
    mask = operand(walk, node, condition["node"])
    if walk.number(yes) is not None or not walk.is_walked(yes["node"]):
        mask, yes, no = _inverted(walk, node, mask), no, yes
    if walk.number(yes) is not None or not walk.is_walked(yes["node"]):
        raise ValueError("chooses between numbers or parameters: wanted a value of tokens")
    a, number = operand(walk, node, yes["node"]), walk.number(no)
    if number is None and walk.is_walked(no["node"]):
        b = operand(walk, node, no["node"])
        if a.size < b.size:
            mask, a, b = _inverted(walk, node, mask), b, a
        return walk.made(node, "where", (mask, a, b), a.shape)
    if mask.size > a.size:
        raise ValueError("a value is repeated along the mask that chooses it")
    if number is None:
        raise ValueError("chooses between a value of tokens and a parameter")
    return walk.made(node, "where", (mask, a), a.shape, numbers={"number": number})


TRUTHS = {"logical_and": "mul", "bitwise_and": "mul", "__and__": "mul",
          "logical_or": "maximum", "bitwise_or": "maximum", "__or__": "maximum"}  # fmt: skip


def truths(walk: Walked, node: TracedNode) -> View:
    """Both, or one of them, of two truth values; not one."""
    if not op_name(node).startswith("logical") and node.dtype != "bool":
        raise ValueError(f"bits of {node.dtype}: wanted truth values")
    if op_name(node) in ("logical_not", "bitwise_not"):
        return walk.laid(node, _inverted(walk, node, walk.taken(node.operands[0])))
    return combined(walk, node, TRUTHS[op_name(node)], *node.operands)


ALONG_TEXT = ("cat", "stack", "pad", "constant_pad_nd", "conv1d")  # ops that read views of parts of the text
HANDLERS: Mapping[tuple[str, ...], Callable[[Walked, TracedNode], Value]] = {
    tuple(UNARY): unary,
    ("add", "sub", "rsub", "mul", "div", "true_divide"): arithmetic,
    ("linear", "addmm", "mm", "matmul", "bmm"): product,
    ("baddbmm",): product_of_parts,
    ("einsum",): einsum,
    ("embedding",): embedding,
    ("pow",): power,
    ("expm1",): less_one,
    ("elu", "leaky_relu"): of_halves,
    ("log_sigmoid",): log_sigmoid,
    ("log1p",): log_of_more,
    ("clamp", "clamp_min", "clamp_max"): clamped,
    (*OVER_LAST, "sum", "mean", "amax", "amin", "std", "var"): reduced,
    tuple(COMPARED): compared,
    ("where", "masked_fill"): chosen,
    (*TRUTHS, "logical_not", "bitwise_not"): truths,
    ("pad", "constant_pad_nd"): padded,
    ("conv1d",): convolution,
    ("remainder",): remainder,
    ("ssm_scan",): scanned,
    ("delta_rule",): delta_ruled,
    ("decayed_sum",): decayed,
}
