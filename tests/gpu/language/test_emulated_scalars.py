"""The emulator's functions of scalars mean what its functions of any values do."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from graphml_gpu.language.arithmetic import Runtime, types
from graphml_gpu.language.features import Features
from graphml_gpu.language.scalars import conversion

RUNTIME = Runtime(types(Features(f16=True)))
EDGES = {
    np.uint32: (0, 1, 2, 31, 32, 33, 4095, 4096, 70000, 2**31 - 1, 2**31, 2**32 - 1),
    np.int32: (0, 1, -1, 2, -2, 7, -7, 31, 4095, 4096, -4096, 70001, 2**31 - 1, -(2**31)),
    np.float32: (0.0, -0.0, 0.5, -0.5, 1.5, -7.9, 4095.9, 4096.0, 2.0**31, -(2.0**31), 2.0**32, -3e9, 1e30,
                 float("inf"), -float("inf"), float("nan")),
    np.float16: (0.0, -0.5, 7.75, 4096.0, -60000.0, float("inf"), float("nan")),
    np.bool_: (False, True),
}  # fmt: skip


def of(kind: Any) -> list[Any]:
    return [kind(value) for value in EDGES[kind]]


def same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    assert got.tobytes() == want.tobytes() or (got != got and want != want)


@pytest.mark.parametrize(("source", "target"), list(product(EDGES, EDGES)), ids=lambda kind: kind.__name__)
def test_conversions_cut_and_wrap_as_of_vectors(source: Any, target: Any) -> None:
    with np.errstate(all="ignore"):
        for value in of(source):
            same(conversion(source, target)(value), RUNTIME.convert(target, value))


@pytest.mark.parametrize("kind", [np.uint32, np.int32], ids=lambda kind: kind.__name__)
def test_integers_are_divided_as_vectors_are(kind: Any) -> None:
    name = "u32" if kind is np.uint32 else "i32"
    with np.errstate(all="ignore"):
        for a, b in product(of(kind), of(kind)):
            for what in ("divide", "remainder"):
                same(getattr(RUNTIME, f"{name}_{what}")(a, b), kind(getattr(RUNTIME, what)(a, b)))


def test_bits_are_shifted_by_their_lower_five() -> None:
    for a, b in product(of(np.uint32), of(np.uint32)):
        same(RUNTIME.u32_shift_left(a, b), RUNTIME.shift_left(a, b))
        same(RUNTIME.u32_shift_right(a, b), RUNTIME.shift_right(a, b))


@pytest.mark.parametrize("kind", [np.uint32, np.int32, np.float32], ids=lambda kind: kind.__name__)
def test_orders_and_bits_are_those_of_vectors(kind: Any) -> None:
    unsigned = [value for value in of(kind) if not (value == 0 and np.signbit(value))]
    for a, b in product(unsigned, unsigned):
        same(RUNTIME.scalar_min(a, b), RUNTIME.min(a, b))
        same(RUNTIME.scalar_max(a, b), RUNTIME.max(a, b))
        same(RUNTIME.scalar_clamp(a, kind(1), kind(7)), RUNTIME.clamp(a, kind(1), kind(7)))
    for value, other in product(of(kind), (np.uint32, np.int32, np.float32)):
        same(RUNTIME.scalar_bitcast(value, other), RUNTIME.bitcast(value, other))


def test_floats_are_multiplied_and_added_at_once() -> None:
    with np.errstate(all="ignore"):
        for a, b, c in product(of(np.float32), repeat=3):
            same(RUNTIME.scalar_fma(a, b, c), RUNTIME.fma(a, b, c))
        for value in of(np.float32):
            same(RUNTIME.scalar_inverse_sqrt(value), RUNTIME.inverse_sqrt(value))


@pytest.mark.parametrize(("begin", "end", "step"), [(0, 5, 1), (4090, 4100, 3), (5000, 5009, 4), (3, 3, 1)])
def test_loops_count_in_their_type(begin: int, end: int, step: int) -> None:
    counted = list(RUNTIME.count(*map(np.uint32, (begin, end, step))))
    assert counted == list(range(begin, end, step))
    assert all(type(value) is np.uint32 for value in counted)


def test_loops_count_down() -> None:
    assert list(RUNTIME.count(*map(np.int32, (5, -2, -3)))) == [5, 2, -1]
