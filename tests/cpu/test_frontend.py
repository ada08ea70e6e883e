"""The language of kernels: what it says means what Python means by it, and what it cannot say is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from graphml_cpu.compiler import Address, Int, KernelRef, compile_kernels
from graphml_cpu.frontend import inline
from graphml_cpu.simd import F32, load, store_i64

from graphml.errors import BackendError
from tests.looped import looped


def ways(a: int, b: int) -> tuple[int, int, int, int]:
    """Loops that are left, tuples through loops, names that only a loop assigns, conditions."""
    pair, found = (a, 0), -1
    for i in range(0, 20, 3):
        last = i * b
        if i == a or (i > 3 and not (b < 5 and i < 9)):
            found = i
            break
        if i % 2 == 1:
            continue
        pair = (pair[1] + i, pair[0])
    else_taken = 7 if found < 0 else 8
    while pair[0] > 3 and pair[1] > -50:
        pair = (pair[0] - 2, pair[1] - 1)
    return found, last, pair[0] * 100 + pair[1], else_taken


def carried(a: int, b: int) -> tuple[int, int, int, int]:
    """Names that only loops assign, read in later rounds; `and` and `or` as values; items from the end."""
    total, seen = 0, 0
    for i in range(a):
        if i == 0:
            first = b * 3
        total += first
    for i in range(2):
        for j in range(2 - 2 * i):
            last = j + b
        seen += last
    either = (a or b) * 100 + (a and b)
    return total, seen, either, (a, b, 5)[-(a % 3) - 1]


def make_stored(name: str) -> Callable[..., None]:
    """What a function above gives for two numbers, as a kernel."""
    compiled = inline({"ways": ways, "carried": carried}[name])

    def kernel(ith: Int, nth: Int, out: Address, a: Int, b: Int) -> None:
        first, second, third, fourth = compiled(a, b)
        store_i64(out, first)
        store_i64(out + 8, second)
        store_i64(out + 16, third)
        store_i64(out + 24, fourth)

    return kernel


def make_assigned_anew() -> Callable[..., None]:
    factor = 1

    @inline
    def scaled(value: int) -> int:
        return value * factor

    def assigned_anew(ith: Int, nth: Int, x: Address) -> None:
        store_i64(x, scaled(3))

    factor = 2
    return assigned_anew


def make_far_shift() -> Callable[..., None]:
    def far_shift(ith: Int, nth: Int, x: Address) -> None:
        store_i64(x, x << 64)

    return far_shift


def make_power() -> Callable[..., None]:
    def power(ith: Int, nth: Int, x: Address) -> None:
        store_i64(x, x**x)

    return power


def make_quotients(known: int) -> Callable[..., None]:
    def quotients(ith: Int, nth: Int, out: Address, a: Int, b: Int) -> None:
        store_i64(out, a // b)
        store_i64(out + 8, a % b)
        store_i64(out + 16, a // known)
        store_i64(out + 24, a % known)
        store_i64(out + 32, known // a)
        store_i64(out + 40, known % a)
        store_i64(out + 48, known // 3)
        store_i64(out + 56, known % -3)

    return quotients


def make_vector_or_number() -> Callable[..., None]:
    def vector_or_number(ith: Int, nth: Int, x: Address, n: Int) -> None:
        value = n
        if n > 3:
            value = load(F32, x)
        store_i64(x, value)

    return vector_or_number


def make_float_as_address() -> Callable[..., None]:
    def float_as_address(ith: Int, nth: Int, x: Address) -> None:
        store_i64(x * 0.5, 1)

    return float_as_address


def make_list() -> Callable[..., None]:
    def uses_list(ith: Int, nth: Int, x: Address) -> None:
        store_i64(x, [1, 2][0])

    return uses_list


def _run(name: str, arguments: tuple[int | str, ...], a: int, b: int, n: int = 4) -> list[int]:
    kernel = compile_kernels([KernelRef(f"{name}-{arguments}", __name__, name, arguments)])[
        f"{name}-{arguments}"
    ]
    out = np.zeros(n, np.int64)
    kernel(kernel.block(out=out.ctypes.data, a=a, b=b))
    return [int(one) for one in out]


@looped("a", [-4, 0, 3, 6, 40])
@looped("b", [-1, 4, 9])
def test_control_flow_is_that_of_python(a: int, b: int) -> None:
    assert _run("make_stored", ("ways",), a, b) == list(ways(a, b))


@looped("a", [0, 1, 3, 5])
@looped("b", [0, 5, -2])
def test_names_and_values_are_those_of_python(a: int, b: int) -> None:
    assert _run("make_stored", ("carried",), a, b) == list(carried(a, b))


def test_a_name_that_is_assigned_after_a_helper_is_made_is_refused() -> None:
    with pytest.raises(BackendError, match=r"test_frontend\.py:\d+: what scaled reads has changed"):
        compile_kernels([KernelRef("assigned_anew", __name__, "make_assigned_anew")])


@looped("known", [1, 8, 7, -1, -8, -7])
@looped(("a", "b"), [(17, 5), (-17, 5), (17, -5), (-17, -5), (-16, 8), (16, -8), (3, 3)])
def test_quotients_are_rounded_down(known: int, a: int, b: int) -> None:
    """Of values, by a constant, of a constant, and of two constants, which are folded."""
    wanted = [a // b, a % b, a // known, a % known, known // a, known % a, known // 3, known % -3]
    assert _run("make_quotients", (known,), a, b, 8) == wanted


def test_quotients_by_zero_are_zero() -> None:
    assert _run("make_quotients", (8,), 9, 0, 8)[:4] == [0, 0, 1, 1]


@looped(
    ("factory", "text"),
    [
        ("make_vector_or_number", "value, which is"),
        ("make_float_as_address", r"float64 for int64: write int"),
        ("make_far_shift", "a shift by 64"),
        ("make_power", "Pow"),
        ("make_list", r"kernels cannot have \[1, 2\]"),
    ],
)
def test_what_is_refused_names_its_line(factory: str, text: str) -> None:
    with pytest.raises(BackendError, match=rf"test_frontend\.py:\d+, in \w+: .*{text}"):
        compile_kernels([KernelRef(factory, __name__, factory)])
