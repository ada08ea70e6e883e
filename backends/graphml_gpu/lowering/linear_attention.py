"""Attention with a matrix a head as memory: the gated delta rule, and what fades, removes and replaces."""

from __future__ import annotations

from typing import Any

from graphml.ir.node import Node
from graphml.ir.ops.linear_attention import n_updates
from graphml.ir.shape import bounds
from graphml_gpu.dispatch import (
    NOTHING,
    Argument,
    DeviceView,
    Dims,
    Dispatch,
    GpuLowering,
    Grid,
    Groups,
    Scalar,
    all_of,
    number,
    rows,
    width,
)
from graphml_gpu.kernels.recurrent.linear_attention import gated_delta_net, linear_attention
from graphml_gpu.lowering.groups import on_grid

_GROUP = 64
_LANES = 8
"""Invocations that share a row, where they can add up without shared memory."""
_LARGEST_BIAS = 8.0
"""Of the ALiBi whose slopes say how heads fade."""


def _shared_out(state: Node, context: DeviceView) -> tuple[dict[str, Any], Grid]:
    """How rows are shared out: constants, and the grid, a workgroup for some rows of a sequence."""
    _, n_head, v_width, k_width = bounds(state.shape)
    features, fours, n_rows = context.features, k_width // 4, n_head * v_width
    most = min(_LANES, features.subgroup_min) if features.subgroups else 1
    lanes = min(most, fours & -fours)
    per_group = min(_GROUP // lanes, n_rows & -n_rows)
    sequences = rows(state.shape[:1])

    def grid(dims: Dims) -> Groups:
        return n_rows // per_group, sequences(dims), 1

    constants = {"N_HEAD": n_head, "V": v_width, "FOURS": fours, "LANES": lanes, "GROUP": per_group * lanes}
    return constants, grid


def _delta(node: Node, context: DeviceView) -> list[Dispatch]:
    state, q, k, v, decay, beta, sequences, positions = node.inputs
    constants, grid = _shared_out(state, context)
    constants |= {
        "N_GROUP": bounds(q.shape)[1], "GROUPED": bool(node.attributes["grouped"]), "EACH": width(decay) > 1,
        "UPDATES": n_updates(k.type),
    }  # fmt: skip
    return [
        on_grid(
            gated_delta_net, constants, grid, state=state, q=q, k=k, v=v, decay=decay, beta=beta,
            sequences=sequences, positions=positions, out=node, tokens=rows(v.shape[:1]),
            scale=number(node, "scale"), n_sequences=rows(state.shape[:1]),
        )
    ]  # fmt: skip


def _linear(node: Node, context: DeviceView) -> list[Dispatch]:
    state, q, k, v, sequences, positions, *gates = node.inputs
    constants, grid = _shared_out(state, context)
    constants |= {
        "DECAY": "" if not gates else "element" if width(gates[0]) > 1 else "head",
        "REPLACES": len(gates) > 1, "BEFORE": bool(node.attributes["before"]),
    }  # fmt: skip
    decay, remove, replace, *_ = (*gates, NOTHING, NOTHING, NOTHING)
    buffers: dict[str, Argument] = {
        "state": state, "q": q, "k": k, "v": v, "decay": decay, "remove": remove, "replace": replace,
        "sequences": sequences, "positions": positions, "out": node,
    }  # fmt: skip
    lower = 1 << (constants["N_HEAD"].bit_length() - 1)
    scalars: dict[str, Scalar] = {
        "tokens": rows(v.shape[:1]), "scale": number(node, "scale"), "fading": number(node, "slope"),
        "n_sequences": rows(state.shape[:1]),
        "bias_step": _LARGEST_BIAS / lower, "lower": lower,
    }  # fmt: skip
    return [Dispatch(linear_attention, constants, buffers, scalars, grid)]


def _refuses(node: Node) -> str | None:
    state = node.inputs[0]
    if width(state) % 4:
        return f"wanted keys of a multiple of 4 elements; got a memory {state.type}"
    return all_of(node, "f32", "i32")


DELTA = GpuLowering(("gated_delta_net",), _delta, refuses=_refuses)
LINEAR = GpuLowering(("linear_attention",), _linear, refuses=_refuses)
