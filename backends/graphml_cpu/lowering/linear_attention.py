"""Attention with a memory: the gated delta rule and its kin."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.ops.linear_attention import n_updates
from graphml.ir.shape import bounds
from graphml_cpu.compiler import KernelRef
from graphml_cpu.lowering.step import Argument, CpuLowering, KernelCall, number, rows


def _refuses(node: Node) -> str | None:
    width = bounds(node.shape)[2]
    return f"values of {width} elements: wanted a multiple of 4" if width % 4 else None


def _step(node: Node, rule: str, first: Node | int, second: Node | int, **other: Argument) -> KernelCall:
    state, q, k, v = node.inputs[:4]
    decay = other["decay"]
    each, before = isinstance(decay, Node) and decay.shape[2] != 1, bool(node.attributes.get("before", False))
    k_width = bounds(q.shape)[2]
    arguments: dict[str, Argument] = {
        "state": state,
        "q": q,
        "k": k,
        "v": v,
        "first": first,
        "second": second,
        "out": node,
        "n_head": bounds(v.shape)[-2],
        "n_group": bounds(q.shape)[1],
        "grouped": int(bool(node.attributes.get("grouped", False))),
        "v_width": bounds(v.shape)[-1],
        "scale": number(node, "scale"),
        "n_sequences": rows(state.shape[:1]),
        "rows": rows(node.shape[:1]),
        **other,
    }
    updates = n_updates(k.type)
    words = [rule, str(k_width), *(["each"] if each else []), *(["before"] if before else [])]
    words += [f"{updates}_updates"] if updates > 1 else []
    ref = KernelRef(
        f"memory_attention-{'-'.join(words)}",
        "graphml_cpu.kernels.recurrent.linear_attention",
        "make_memory_attention",
        (rule, k_width, each, before, *([updates] if updates > 1 else [])),
    )
    return KernelCall(ref, arguments, writes=("state", "out"))


def _lower_delta(node: Node, threads: int) -> list[KernelCall]:
    decay, beta, sequences, positions = node.inputs[4:]
    return [_step(node, "delta", beta, 0, decay=decay, slope=0.0, sequences=sequences, positions=positions)]


def _lower_linear(node: Node, threads: int) -> list[KernelCall]:
    sequences, positions, *gates = node.inputs[4:]
    decay: Node | int = gates[0] if gates else 0
    first, second = gates[1:] if len(gates) > 1 else (0, 0)
    rule, slope = "replace" if len(gates) > 1 else "plain", number(node, "slope")
    return [
        _step(node, rule, first, second, decay=decay, slope=slope, sequences=sequences, positions=positions)
    ]


GATED_DELTA_NET = CpuLowering(("gated_delta_net",), _lower_delta, refuses=_refuses)
LINEAR_ATTENTION = CpuLowering(("linear_attention",), _lower_linear, refuses=_refuses)
