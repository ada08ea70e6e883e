"""`//` and `%` of integers are Python's for all signs: folded, in the emulator and on every device."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from graphml_gpu.language import Read, Write, global_id, i32, i32x4, kernel, local_id, u32, unroll

from tests.gpu.language.devices import DRIVERS, open_driver, run_on

DIVISORS = (1, -1, 2, -2, 3, -3, 8, -8, 7, -7, 2**31 - 1, -(2**31))
VALUES = (0, 1, -1, 2, -2, 4, -4, 6, -6, 7, -7, 8, -8, 9, -9, 2**31 - 1, -(2**31) + 1, -(2**31))
PAIRS = [(a, b) for a, b in product(VALUES, DIVISORS) if (a, b) != (-(2**31), -1)]
"""But for the pair whose quotient has no 32 bits."""
WANTED = np.array([(a // b, a % b) for a, b in PAIRS], np.int32)


@kernel
def at_run_time(a: Read[i32], b: Read[i32], out: Write[i32], n: u32, *, GROUP: int = 64) -> None:
    i = global_id(0)
    if i < n:
        rest = a[i]
        rest %= b[i]
        out[2 * i] = a[i] // b[i]
        out[2 * i + 1] = rest


@kernel
def of_vectors(a: Read[i32x4], b: Read[i32x4], out: Write[i32x4], n: u32, *, GROUP: int = 64) -> None:
    i = global_id(0)
    if i < n:
        out[2 * i] = a[i] // b[i]
        out[2 * i + 1] = a[i] % b[i]


@kernel
def known_divisor(a: Read[i32], out: Write[i32], n: u32, *, BY: int, GROUP: int = 64) -> None:
    i = global_id(0)
    if i < n:
        out[2 * i] = a[i] // BY
        out[2 * i + 1] = a[i] % BY


@kernel
def vectors_by_known(a: Read[i32x4], out: Write[i32x4], n: u32, *, BY: int, GROUP: int = 64) -> None:
    i = global_id(0)
    if i < n:
        out[2 * i] = a[i] // BY
        out[2 * i + 1] = a[i] % BY


@kernel
def known_dividend(b: Read[i32], out: Write[i32], n: u32, *, OF: int, GROUP: int = 64) -> None:
    i = global_id(0)
    if i < n:
        out[2 * i] = OF // b[i]
        out[2 * i + 1] = OF % b[i]


@kernel
def folded(out: Write[i32], *, PAIRS: tuple[tuple[int, int], ...], GROUP: int = 1) -> None:
    """Constants of Python, and constants of the type i32."""
    for k in unroll(range(len(PAIRS))):
        a, b = PAIRS[k]
        out[4 * k] = i32(a // b)
        out[4 * k + 1] = i32(a % b)
        out[4 * k + 2] = i32(a) // b
        out[4 * k + 3] = a % i32(b)


RUNNERS = ["emulator", *DRIVERS]


@pytest.fixture(params=RUNNERS, scope="module")
def run(request):  # type: ignore[no-untyped-def]
    if request.param == "emulator":

        def emulated(made, buffers, scalars, groups):  # type: ignore[no-untyped-def]
            copies = {name: array.copy() for name, array in buffers.items()}
            with np.errstate(over="ignore"):
                made.run_python(copies, scalars, groups)
            return copies

        return emulated
    driver = open_driver(request.param)
    return lambda made, buffers, scalars, groups: run_on(driver, made, buffers, scalars, groups)


def _groups(n: int) -> tuple[int, int, int]:
    return (-(-n // 64), 1, 1)


def test_at_run_time(run) -> None:  # type: ignore[no-untyped-def]
    a, b = np.array(PAIRS, np.int32).T.copy()
    n = len(PAIRS)
    out = run(
        at_run_time.specialise(), {"a": a, "b": b, "out": np.zeros((n, 2), np.int32)}, {"n": n}, _groups(n)
    )
    np.testing.assert_array_equal(out["out"], WANTED)


def test_lane_by_lane(run) -> None:  # type: ignore[no-untyped-def]
    whole = len(PAIRS) // 4 * 4
    a, b = np.array(PAIRS[:whole], np.int32).T.copy()
    n = whole // 4
    buffers = {"a": a, "b": b, "out": np.zeros((n, 2, 4), np.int32)}
    out = run(of_vectors.specialise(), buffers, {"n": n}, _groups(n))["out"]
    np.testing.assert_array_equal(out.swapaxes(1, 2).reshape(whole, 2), WANTED[:whole])


@pytest.mark.parametrize("by", DIVISORS)
def test_by_a_constant(run, by: int) -> None:  # type: ignore[no-untyped-def]
    a = np.array([value for value in VALUES if (value, by) in PAIRS][:16], np.int32)
    n = len(a)
    wanted = np.array([(value // by, value % by) for value in a.tolist()], np.int32)
    buffers = {"a": a, "out": np.zeros((n, 2), np.int32)}
    out = run(known_divisor.specialise(BY=by), buffers, {"n": n}, _groups(n))["out"]
    np.testing.assert_array_equal(out, wanted)
    buffers = {"a": a, "out": np.zeros((n // 4, 2, 4), np.int32)}
    out = run(vectors_by_known.specialise(BY=by), buffers, {"n": n // 4}, _groups(n))["out"]
    np.testing.assert_array_equal(out.swapaxes(1, 2).reshape(n, 2), wanted)


@pytest.mark.parametrize("of", [7, -7, 8, -8, 0, -(2**31)])
def test_of_a_constant(run, of: int) -> None:  # type: ignore[no-untyped-def]
    b = np.array([by for by in DIVISORS if (of, by) in PAIRS or of == 0], np.int32)
    n = len(b)
    buffers = {"b": b, "out": np.zeros((n, 2), np.int32)}
    out = run(known_dividend.specialise(OF=of), buffers, {"n": n}, _groups(n))["out"]
    np.testing.assert_array_equal(out, [(of // by, of % by) for by in b.tolist()])


def test_when_compiling(run) -> None:  # type: ignore[no-untyped-def]
    pairs = [(a, b) for a, b in product((7, -7, 8, -8, 0, -1), (2, -2, 3, -3, 8, -8))]
    made = folded.specialise(PAIRS=tuple(pairs))
    out = run(made, {"out": np.zeros((len(pairs), 4), np.int32)}, {}, (1, 1, 1))["out"]
    np.testing.assert_array_equal(out, [(a // b, a % b) * 2 for a, b in pairs])


@kernel
def never_below_zero(x: Read[i32], out: Write[i32], n: u32, *, GROUP: int = 64) -> None:
    """Values that have no sign by their type, their loop, or what was done with them."""
    capped = max(x[0], 0)
    total = i32(n // 3) + (x[1] & 255) % 5 + capped // 6 + i32(local_id(0)) // 7
    for i in range(9, -1, -1):
        total += i // 3
    for j in range(i32(0), x[0]):
        total += j % 11
    out[global_id(0)] = total


def test_values_without_a_sign_are_divided_by_one_instruction() -> None:
    made = never_below_zero.specialise()
    for text in (made.wgsl(), made.opencl()):
        assert "quotient" not in text
        assert [f"% {by}" in text or f"/ {by}" in text for by in (3, 5, 6, 7, 11)] == [True] * 5


def test_a_power_of_two_is_a_shift_or_a_mask() -> None:
    text = known_divisor.specialise(BY=8).opencl()
    assert ">> 3u" in text
    assert "& 7" in text
    assert "/" not in text.partition("__kernel")[2]
