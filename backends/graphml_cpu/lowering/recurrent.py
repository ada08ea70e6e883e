"""Recurrent ops: what each token makes of the state of its sequence."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphml.ir.interpreter import depends_on, of_weights
from graphml.ir.node import Node
from graphml.ir.op import Array, integer, integers
from graphml.ir.shape import bounds
from graphml_cpu.compiler import KernelRef
from graphml_cpu.lowering.step import (
    Argument,
    CpuLowering,
    HostConstant,
    KernelCall,
    leading,
    one_step,
    rows,
    width,
)

_SSM_SCAN = "graphml_cpu.kernels.recurrent.ssm_scan"


def _refuses_computed(weight: Node) -> str | None:
    """Refuse what cannot be transposed when the program is made: what weights alone do not decide."""
    other = depends_on(weight)
    return f"{other.name} is no weight" if other else None


def _refuses_conv(node: Node) -> str | None:
    return _refuses_computed(node.inputs[2])


def _transposed(weight: Node) -> HostConstant:
    def made(weights: Mapping[str, Array]) -> Array:
        return np.ascontiguousarray(of_weights(weight, weights).T)

    return HostConstant(made)


def _lower_conv(node: Node, threads: int) -> list[KernelCall]:
    state, x, weight, sequences, positions = node.inputs[:5]
    activation = node.op.name.removeprefix("ssm_conv").removeprefix("_")
    name = f"ssm_conv-{activation}" if activation else "ssm_conv"
    ref = KernelRef(name, "graphml_cpu.kernels.recurrent.ssm_conv", "make_ssm_conv", (activation,))
    return one_step(
        ref, ("state", "out"), state=state, x=x, weight=_transposed(weight),
        bias=node.inputs[5] if len(node.inputs) > 5 else 0, sequences=sequences, positions=positions,
        out=node, n=width(x), d_conv=width(weight), n_sequences=rows(state.shape[:1]), rows=leading(x),
    )  # fmt: skip


CONV = CpuLowering(("ssm_conv", "ssm_conv_silu"), _lower_conv, refuses=_refuses_conv)


def _decays_by_head(node: Node) -> bool:
    state, a = node.inputs[0], node.inputs[3]
    return bounds(a.shape) == (bounds(state.shape)[1], 1)


def _refuses_scan(node: Node) -> str | None:
    return None if _decays_by_head(node) else _refuses_computed(node.inputs[3])


def _lower_scan(node: Node, threads: int) -> list[KernelCall]:
    state, x, dt, a, b, c, d, sequences, positions = node.inputs
    n_head, d_state, head_dim = bounds(state.shape)[1:]
    arguments: dict[str, Argument] = {
        "state": state, "x": x, "dt": dt, "a": a, "b": b, "c": c, "d": d, "sequences": sequences,
        "positions": positions, "out": node, "d_state": d_state, "n_sequences": rows(state.shape[:1]),
        "rows": leading(x),
    }  # fmt: skip
    if _decays_by_head(node):
        arguments |= {"n_head": n_head, "head_dim": head_dim, "n_group": width(b) // d_state}
        ref = KernelRef("ssm_scan", _SSM_SCAN, "make_ssm_scan")
    else:
        arguments |= {"a": _transposed(a), "n": head_dim}
        ref = KernelRef("ssm_scan_channels", _SSM_SCAN, "make_ssm_scan_channels")
    return [KernelCall(ref, arguments, writes=("state", "out"))]


SCAN = CpuLowering(("ssm_scan",), _lower_scan, refuses=_refuses_scan)


def _numbers(node: Node, name: str) -> HostConstant:
    def made(weights: Mapping[str, Array]) -> Array:
        return np.array(integers(node.attributes, name), np.uint64).view(np.int64)

    return HostConstant(made)


def _lower_ngram(node: Node, threads: int) -> list[KernelCall]:
    state, tokens, sequences, positions = node.inputs
    ref = KernelRef("ngram_rows", "graphml_cpu.kernels.recurrent.ngram", "make_ngram_rows")
    return one_step(
        ref, ("state", "out"), state=state, tokens=tokens, sequences=sequences, positions=positions,
        **{name: _numbers(node, name) for name in ("multipliers", "sizes", "offsets")}, out=node,
        n=width(state) + 1, n_head=width(node), eos=integer(node.attributes, "eos"),
        n_sequences=rows(state.shape[:1]), rows=leading(node),
    )  # fmt: skip


NGRAM = CpuLowering(("ngram_rows",), _lower_ngram)
