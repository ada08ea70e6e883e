"""Products with weights as files hold them, several of one value, gates with their two; conversions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphml.ir.node import Node
from graphml.ir.op import Array, text
from graphml.ir.ops.leaf import weight_leaf
from graphml.ir.shape import bounds
from graphml_gpu.dispatch import (
    NOTHING,
    Argument,
    DeviceView,
    Dispatch,
    GpuLowering,
    HostConstant,
    NodeResult,
    along,
    rows,
)
from graphml_gpu.kernels.indexing.get_rows import get_rows
from graphml_gpu.kernels.products.mat_vec import MAT_VEC_GLU, MOST_MATRICES, mat_vecs
from graphml_gpu.kernels.products.quantize import quantize
from graphml_gpu.lowering.products import (
    activations,
    form_of,
    grid,
    is_few,
    layout,
    not_f32,
    not_multiplied,
    parameters,
    product,
    readable,
    rows_per_group,
    same_table,
    slabs,
    table_of,
)
from graphml_gpu.node_support import part_offset

_UNITS_PER_GROUP = 64
_BINDINGS_BESIDE = 5  # what is multiplied, two of its norm, biases and results


def _first(reasons: Sequence[str | None]) -> str | None:
    return next((reason for reason in reasons if reason), None)


def _refuses_linear(node: Node) -> str | None:
    weight, x, *rest = node.inputs
    return _first([not_multiplied(weight, x), *map(not_f32, rest)])


def _lower_linear(node: Node, context: DeviceView) -> list[Dispatch]:
    weight, x = node.inputs[:2]
    bias: Argument = node.inputs[2] if node.attributes["bias"] else NOTHING
    residual: Argument = node.inputs[-1] if node.attributes["residual"] else NOTHING
    return product(weight, x, node, context, bias, residual)


def _lower_mul_mat(node: Node, context: DeviceView) -> list[Dispatch]:
    return product(node.inputs[0], node.inputs[1], node, context)


def _operands(node: Node) -> tuple[Node, Sequence[Node], Sequence[Node]]:
    """What is multiplied, the weights and their biases."""
    x, *rest = node.inputs
    count = len(rest) // 2 if node.attributes["bias"] else len(rest)
    return x, rest[:count], rest[count:]


def _refuses_linears(node: Node) -> str | None:
    x, weights, biases = _operands(node)
    return _first([*(not_multiplied(weight, x) for weight in weights), *map(not_f32, biases)])


def _lower_linears(node: Node, context: DeviceView) -> list[Dispatch]:
    """Some products a dispatch; one each of many rows, or where weights are in several buffers."""
    x, weights, biases = _operands(node)
    columns = rows(x.shape[:-1])
    whole = all(len(slabs(weight, context)) == 1 for weight in weights)
    leaves = all(bias.op is weight_leaf for bias in biases)
    together = is_few(columns, x, context) and whole and leaves
    most = min(MOST_MATRICES, context.facts.max_bindings - _BINDINGS_BESIDE)
    dispatches: list[Dispatch] = []
    start = 0
    while start < len(weights):
        count = min(most, len(weights) - start)
        if together and count > 1 and same_table(weights[start : start + count]):
            dispatches.append(_together(node, context, start, count))
        else:
            count = 1
            bias: Argument = biases[start] if biases else NOTHING
            dispatches += product(weights[start], x, NodeResult(node, start), context, bias)
        start += count
    return dispatches


def _together(node: Node, context: DeviceView, start: int, count: int) -> Dispatch:
    """The products with weights `start` and on: two or more."""
    x, every_weight, every_bias = _operands(node)
    weights, biases = every_weight[start : start + count], every_bias[start : start + count]
    columns = rows(x.shape[:-1])
    sizes = [bounds(weight.shape)[0] for weight in weights]
    way = parameters(context, weights[0], x, columns)
    per_group = rows_per_group(way)
    padded = [*weights, *[weights[0]] * MOST_MATRICES][:MOST_MATRICES]
    constants = {f"{name}_{i}": value for i, w in enumerate(padded) for name, value in layout(w).items()}
    base = part_offset(node.type, start)
    begins = [(part_offset(node.type, start + i) - base) // 4 for i in range(count)]
    buffers: dict[str, Argument] = {f"w_{i}": w if i < count else NOTHING for i, w in enumerate(padded)}
    row = activations(x, context)
    buffers |= {**row.buffers, "table": table_of(*weights), "y": node, "bias": _joined(biases)}
    scalars = {f"n_{i}": n for i, n in enumerate([*sizes, *[0] * MOST_MATRICES][:MOST_MATRICES])}
    scalars |= {"k": bounds(x.shape)[-1], "begin_0": base // 4}
    scalars |= {
        f"begin_{i}": base // 4 + begin
        for i, begin in enumerate([*begins, *[0] * MOST_MATRICES][:MOST_MATRICES])
    }
    groups = sum(-(-n // per_group) for n in sizes)
    return Dispatch(
        mat_vecs([form_of(weight, x, context) for weight in weights]),
        {**way, **constants, **row.constants, "BIAS": bool(biases), "COUNT": count},
        buffers,
        {**scalars, **row.scalars, "columns": columns},
        grid(groups, columns, way["COLUMNS"]),
    )


def _joined(biases: Sequence[Node]) -> Argument:
    """The biases in a row, so that they take one binding."""
    if not biases:
        return NOTHING
    names = tuple(bias.name for bias in biases)

    def make(weights: Mapping[str, Array]) -> Array:
        return np.concatenate([np.asarray(weights[name], np.float32) for name in names])

    return HostConstant(make)


def _refuses_glu(node: Node) -> str | None:
    gate, up, *rest = node.inputs
    x, *biases = rest
    products = (not_multiplied(gate, x), not_multiplied(up, x))
    return _first([*products, *map(not_f32, biases), not_f32(node)])


def _lower_glu(node: Node, context: DeviceView) -> list[Dispatch]:
    """Both products in one dispatch for few rows; else the gate's first, which the other's goes through."""
    gate, up, x, *biases = node.inputs
    gate_bias, up_bias = biases or (NOTHING, NOTHING)
    glu, columns = text(node.attributes, "glu"), rows(x.shape[:-1])
    shards = list(zip(slabs(gate, context), slabs(up, context), strict=False))
    alike = all((shard.first, shard.count) == (other.first, other.count) for shard, other in shards)
    alike = alike and len(slabs(gate, context)) == len(slabs(up, context))
    alike = alike and same_table((gate, up)) and form_of(gate, x, context) == form_of(up, x, context)
    if not is_few(columns, x, context) or not alike:
        first = product(gate, x, node, context, gate_bias)
        return [*first, *product(up, x, node, context, up_bias, glu=glu)]
    n, k = bounds(gate.shape)
    way = parameters(context, gate, x, columns)
    row = activations(x, context)
    constants: dict[str, Any] = {**way, **row.constants, "GLU": glu, "BIAS": bool(biases)}
    constants |= {f"GATE_{name}": value for name, value in layout(gate).items()}
    constants |= {f"UP_{name}": value for name, value in layout(up).items()}
    return [
        Dispatch(
            MAT_VEC_GLU[form_of(gate, x, context)],
            constants,
            {
                "gate": shard.argument,
                "up": other.argument,
                **row.buffers,
                "table": table_of(gate, up),
                "gate_bias": gate_bias,
                "up_bias": up_bias,
                "y": node,
            },
            {**row.scalars, "n": shard.count, "k": k, "columns": columns, "first": shard.first, "stride": n},
            grid(-(-shard.count // rows_per_group(way)), columns, way["COLUMNS"]),
        )
        for shard, other in shards
    ]


def _refuses_conversion(node: Node) -> str | None:
    return readable(node.inputs[0])


def _lower_dequantize(node: Node, context: DeviceView) -> list[Dispatch]:
    x = node.inputs[0]
    count, k = rows(x.shape[:-1]), bounds(x.shape)[-1]
    return [
        Dispatch(
            get_rows,
            {**layout(x), "EVEN": k % 16 == 0, "CHOSEN": False, "GROUP": _UNITS_PER_GROUP},
            {"w": x, "table": table_of(x), "indices": NOTHING, "out": node},
            {"n": count, "first": 0, "total": count, "k": k, "count": count},
            along(count * -(-k // 16), _UNITS_PER_GROUP),
        )
    ]


def _refuses_quantize(node: Node) -> str | None:
    return not_f32(node.inputs[0]) or (None if node.dtype.name == "q8_1" else f"no kernel makes {node.dtype}")


def _lower_quantize(node: Node, context: DeviceView) -> list[Dispatch]:
    x = node.inputs[0]
    groups = bounds(x.shape)[-1] // 32
    count = rows(x.shape[:-1]) * groups
    return [
        Dispatch(
            quantize,
            {"GROUP": _UNITS_PER_GROUP},
            {"x": x, "out": node},
            {"groups": groups, "count": count},
            along(count, _UNITS_PER_GROUP),
        )
    ]


QUANTIZE = GpuLowering(("quantize",), _lower_quantize, refuses=_refuses_quantize)
LINEAR = GpuLowering(("linear",), _lower_linear, refuses=_refuses_linear)
MUL_MAT = GpuLowering(("mul_mat",), _lower_mul_mat, refuses=_refuses_linear)
LINEARS = GpuLowering(("linears",), _lower_linears, refuses=_refuses_linears)
GLU = GpuLowering(("mul_mat_glu",), _lower_glu, refuses=_refuses_glu)
DEQUANTIZE = GpuLowering(("dequantize",), _lower_dequantize, refuses=_refuses_conversion)
