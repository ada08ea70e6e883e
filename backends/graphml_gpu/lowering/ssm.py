"""Recurrent ops of state spaces."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.shape import bounds
from graphml_gpu.dispatch import (
    MOST_TURNS,
    NOTHING,
    Argument,
    DeviceView,
    Dims,
    Dispatch,
    GpuLowering,
    Groups,
    Scalar,
    all_of,
    rows,
    width,
)
from graphml_gpu.kernels.elementwise.formulas import UNARY
from graphml_gpu.kernels.recurrent.ssm import itself, ssm_conv, ssm_scan
from graphml_gpu.lowering.groups import for_elements, per_element


def _conv(node: Node, context: DeviceView) -> list[Dispatch]:
    state, x, weight, sequences, positions = node.inputs[:5]
    bias = node.inputs[5] if len(node.inputs) > 5 else None
    activation = node.op.name.removeprefix("ssm_conv").removeprefix("_")
    function = UNARY[activation] if activation else itself
    constants = {"KEPT": width(weight) - 1, "BIAS": bias is not None, "FUNCTION": function}
    return per_element(
        ssm_conv, rows(x.shape[1:]), constants, node.op.name, state=state, x=x, weight=weight,
        bias=NOTHING if bias is None else bias, sequences=sequences, positions=positions, out=node,
        n=width(x), tokens=rows(x.shape[:1]), n_sequences=rows(state.shape[:1]),
    )  # fmt: skip


def _scan(node: Node, context: DeviceView) -> list[Dispatch]:
    state, x, dt, a, b, c, d, sequences, positions = node.inputs
    n_head, d_state, head_dim = bounds(state.shape)[1:]
    constants, grid = for_elements(rows(x.shape[1:]))
    tokens = rows(x.shape[:1])
    constants["BY_CHANNEL"] = bounds(a.shape) != (n_head, 1)
    buffers: dict[str, Argument] = {
        "state": state, "x": x, "dt": dt, "a": a, "b": b, "c": c, "d": d, "sequences": sequences,
        "positions": positions, "out": node,
    }  # fmt: skip
    scalars: dict[str, Scalar] = {
        "n": width(x), "n_head": n_head, "head_dim": head_dim, "d_state": d_state,
        "n_group": width(b) // d_state,
        "n_sequences": rows(state.shape[:1]),
    }  # fmt: skip
    at_once = max(1, MOST_TURNS // (d_state + 1))

    def of_tokens(first: int) -> Dispatch:
        """So many tokens that the loops of an invocation end in time on every driver."""

        def groups(dims: Dims) -> Groups:
            return grid(dims) if first < tokens(dims) else (0, 1, 1)

        numbers: dict[str, Scalar] = {
            "first": first, "tokens": lambda dims: min(first + at_once, tokens(dims))
        }  # fmt: skip
        return Dispatch(ssm_scan, constants, buffers, scalars | numbers, groups)

    return [of_tokens(first) for first in range(0, bounds(x.shape)[0], at_once)]


def _refuses(node: Node) -> str | None:
    return all_of(node, "f32", "i32")


CONV = GpuLowering(("ssm_conv", "ssm_conv_silu"), _conv, refuses=_refuses)
SCAN = GpuLowering(("ssm_scan",), _scan, refuses=_refuses)
