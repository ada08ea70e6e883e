"""The formulas of elementwise ops on float32 vectors of any width, by the names of the ops.

How exact they are is said and tested where they are defined (`graphml_cpu.simd.math`). Knows no rows.
"""

from __future__ import annotations

from typing import Any

from graphml.errors import BackendError
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    absolute,
    erf,
    exp,
    gelu_erf,
    gelu_quick,
    gelu_tanh,
    log,
    log1p_exp,
    maximum,
    minimum,
    round_even,
    select,
    sigmoid,
    silu,
    splat_like,
    square_root,
    tanh,
)


@inline
def _neg(x: Vector) -> Vector:
    return -x


@inline
def _sqr(x: Vector) -> Vector:
    return x * x


@inline
def _relu(x: Vector) -> Vector:
    return maximum(splat_like(x, 0.0), x)


@inline
def _floor(x: Vector) -> Vector:
    nearest = round_even(x)
    return select(nearest > x, nearest - 1.0, nearest)


UNARY: dict[str, Any] = {
    "neg": _neg,
    "abs": absolute,
    "sqr": _sqr,
    "sqrt": square_root,
    "exp": exp,
    "log": log,
    "floor": _floor,
    "round": round_even,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "relu": _relu,
    "silu": silu,
    "gelu": gelu_tanh,
    "gelu_erf": gelu_erf,
    "gelu_quick": gelu_quick,
    "softplus": log1p_exp,
    "erf": erf,
}


@inline
def _add(a: Vector, b: Vector) -> Vector:
    return a + b


@inline
def _sub(a: Vector, b: Vector) -> Vector:
    return a - b


@inline
def _mul(a: Vector, b: Vector) -> Vector:
    return a * b


@inline
def _div(a: Vector, b: Vector) -> Vector:
    return a / b


@inline
def largest(a: Vector, b: Vector) -> Vector:
    """The larger of each pair, NaN where one of them is."""
    return select(a == a, maximum(a, b), a)  # `maximum` gives b where b is NaN


@inline
def smallest(a: Vector, b: Vector) -> Vector:
    """The smaller of each pair, NaN where one of them is."""
    return select(a == a, minimum(a, b), a)


@inline
def _less(a: Vector, b: Vector) -> Vector:
    return select(a < b, splat_like(a, 1.0), splat_like(a, 0.0))


@inline
def _less_equal(a: Vector, b: Vector) -> Vector:
    return select(a <= b, splat_like(a, 1.0), splat_like(a, 0.0))


@inline
def _equal(a: Vector, b: Vector) -> Vector:
    return select(a == b, splat_like(a, 1.0), splat_like(a, 0.0))


BINARY: dict[str, Any] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "maximum": largest,
    "minimum": smallest,
    "less": _less,
    "less_equal": _less_equal,
    "equal": _equal,
}


@inline
def _swiglu_oai(gate: Vector, up: Vector) -> Vector:
    # gpt-oss: alpha 1.702, limit 7.
    gate = minimum(splat_like(gate, 7.0), gate)
    up = maximum(splat_like(up, -7.0), minimum(splat_like(up, 7.0), up))
    return gate / (exp(gate * -1.702) + 1.0) * (up + 1.0)


def _gated(function: Any) -> Any:
    @inline
    def gate_times_up(gate: Vector, up: Vector) -> Vector:
        return function(gate) * up

    return gate_times_up


GLU: dict[str, Any] = {
    "swiglu": _gated(silu),
    "geglu": _gated(gelu_tanh),
    "geglu_erf": _gated(gelu_erf),
    "geglu_quick": _gated(gelu_quick),
    "reglu": _gated(_relu),
    "swiglu_oai": _swiglu_oai,
}


def pick(table: dict[str, Any], op: str, kernel: str) -> Any:
    """The function of `op`; another name raises `BackendError`."""
    if op not in table:
        raise BackendError(f"{kernel}: unknown operation {op!r}; wanted one of {', '.join(table)}")
    return table[op]
