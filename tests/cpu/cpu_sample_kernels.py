"""Kernels that the tests of the CPU backend compile: one operation each, over whole arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from graphml_cpu import simd
from graphml_cpu.compiler import Address, Code, Dim, Float, Int, RunAddress
from graphml_cpu.simd import (
    F16,
    F32,
    I32,
    WIDTH,
    call_kernel,
    load,
    load_f16,
    load_f32,
    load_i64,
    load_partial,
    store,
    store_f16,
    store_f32,
    store_i64,
    store_partial,
    vector,
)

OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "&": operator.and_,
    "|": operator.or_, "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def make_unary(name: str) -> Callable[..., None]:
    function = getattr(simd, name)

    def unary(ith: Int, nth: Int, x: Address, out: Address, n: Int) -> None:
        for i in range(0, n, WIDTH):
            store_partial(out + i * 4, function(load_partial(F32, x + i * 4, n - i)), n - i)

    return unary


def make_caller() -> Callable[..., None]:
    """Has another kernel do its work."""

    def caller(ith: Int, nth: Int, called: Code, x: Address, other: Code, out: Address, n: Int) -> None:
        if other == 0:
            call_kernel(called, (x, out, n))

    return caller


def make_slots() -> Callable[..., None]:
    """Writes down what it was given."""

    def slots(
        ith: Int, nth: Int, out: Address, number: Int, factor: Float, rows: Dim, state: RunAddress
    ) -> None:
        store_i64(out, ith)
        store_i64(out + 8, nth)
        store_i64(out + 16, number)
        store_f32(out + 24, factor)
        store_i64(out + 32, rows)
        store_i64(out + 40, state)

    return slots


def make_binary(symbol: str, element: str) -> Callable[..., None]:
    kind = vector(element, 8)
    size = kind.bits
    apply = OPERATORS[symbol]

    def binary(ith: Int, nth: Int, a: Address, b: Address, out: Address) -> None:
        store(out, apply(load(kind, a), load(kind, b)))

    assert size
    return binary


def make_compare(symbol: str, element: str) -> Callable[..., None]:
    kind = vector(element, 8)
    apply = OPERATORS[symbol]

    def compare(ith: Int, nth: Int, a: Address, b: Address, out: Address) -> None:
        x = load(kind, a)
        y = load(kind, b)
        store(out, simd.select(apply(x, y), simd.splat(kind, 1), simd.zero(kind)))

    return compare


def make_convert(source: str, result: str, lanes: int) -> Callable[..., None]:
    given = vector(source, lanes)
    wanted = vector(result, lanes)
    step_in, step_out = given.bits * lanes // 8, wanted.bits * lanes // 8

    def convert(ith: Int, nth: Int, x: Address, out: Address, n: Int) -> None:
        for i in range(n // lanes):
            store(out + i * step_out, simd.convert(wanted, load(given, x + i * step_in)))

    return convert


def make_loops() -> Callable[..., None]:
    """Numbers of loops one after the other, from `out` on; the number of them at the end."""

    def loops(ith: Int, nth: Int, out: Address, count: Address, a: Int, b: Int, step: Int) -> None:
        n = 0
        for i in range(b):
            store_i64(out + n * 8, i)
            n += 1
        for i in range(a, b):
            if i == 4:
                continue
            for j in range(i, b, WIDTH // WIDTH * 3):
                if j > 7:
                    break
                store_i64(out + n * 8, i * 1000 + j)
                n += 1
        for i in range(a, b, step):
            store_i64(out + n * 8, i)
            n += 1
        twice = range(a, b, 2)
        for i in twice:
            for j in twice:
                store_i64(out + n * 8, i - j)
                n += 1
        for i in range(b, a, -2):
            store_i64(out + n * 8, i)
            n += 1
        last = -1
        for i in range(a, b, 5):
            last = i
        store_i64(out + n * 8, last)
        store_i64(count, n + 1)

    return loops


def make_narrow(result: str) -> Callable[..., None]:
    kind = vector(result, WIDTH)
    size = kind.bits // 8

    def narrow(ith: Int, nth: Int, x: Address, out: Address, n: Int) -> None:
        for i in range(0, n, WIDTH):
            store(out + i * size, simd.narrow_saturated(kind, load(I32, x + i * 4)))

    return narrow


def make_bf16() -> Callable[..., None]:
    def bf16(ith: Int, nth: Int, x: Address, bits: Address, back: Address, n: Int) -> None:
        for i in range(0, n, WIDTH):
            narrow = simd.f32_to_bf16(load(F32, x + i * 4))
            store(bits + i * 2, narrow)
            store(back + i * 4, simd.bf16_to_f32(narrow))

    return bf16


def make_dot2_bf16(lanes: int) -> Callable[..., None]:
    total, pairs = vector("f32", lanes), vector("i32", lanes)

    def dot2_bf16(ith: Int, nth: Int, a: Address, b: Address, out: Address, n: Int) -> None:
        for i in range(0, n * lanes * 4, lanes * 4):
            found = simd.dot2_bf16(load(total, out + i), load(pairs, a + i), load(pairs, b + i))
            store(out + i, found)

    return dot2_bf16


def make_scalar_halves() -> Callable[..., None]:
    def scalar_halves(ith: Int, nth: Int, halves: Address, singles: Address, back: Address, n: Int) -> None:
        for i in range(n):
            store_f32(singles + i * 4, load_f16(halves + i * 2))
            store_f16(back + i * 2, load_f32(singles + i * 4))

    return scalar_halves


def make_halves() -> Callable[..., None]:
    def halves(ith: Int, nth: Int, halves: Address, singles: Address, n: Int) -> None:
        for i in range(0, n, WIDTH):
            store(singles + i * 4, simd.convert(F32, load(F16, halves + i * 2)))

    return halves


def make_dot(name: str, lanes: int) -> Callable[..., None]:
    dot = getattr(simd, name)
    total = vector("i32", lanes)
    first = vector("u8" if name == "dot4" else "i8", lanes * 4)
    second = vector("i8", lanes * 4)

    def dot_kernel(ith: Int, nth: Int, a: Address, b: Address, out: Address, n: Int) -> None:
        for i in range(n):
            at = i * lanes * 4
            store(out + at, dot(load(total, out + at), load(first, a + at), load(second, b + at)))

    return dot_kernel


def make_lookup(lanes: int) -> Callable[..., None]:
    table_type = vector("i8", 16)
    index_type = vector("u8", lanes)

    def lookup(ith: Int, nth: Int, table: Address, index: Address, out: Address) -> None:
        store(out, simd.lookup16(load(table_type, table), load(index_type, index)))

    return lookup


def make_mask(lanes: int) -> Callable[..., None]:
    bits_type, mask_type, out_type = vector("u8", lanes // 8), vector("i1", lanes), vector("u8", lanes)

    def mask(ith: Int, nth: Int, bits: Address, out: Address) -> None:
        chosen = simd.bitcast(mask_type, load(bits_type, bits))
        store(out, simd.select(chosen, simd.splat(out_type, 1), simd.zero(out_type)))

    return mask


WORDS = [(7919 * i + 13) % 65536 for i in range(512)]


def make_word_lookup(count: int) -> Callable[..., None]:
    kind, look_up = vector("u16", 32), simd.word_lookup(WORDS[:count])

    def words(ith: Int, nth: Int, index: Address, out: Address) -> None:
        store(out, look_up(load(kind, index)))

    return words


def make_float_lookup(lanes: int) -> Callable[..., None]:
    kind, look_up = vector("i32", lanes), simd.float_lookup([i * i / 4 for i in range(16)])

    def floats(ith: Int, nth: Int, index: Address, out: Address) -> None:
        store(out, look_up(load(kind, index)))

    return floats


def make_columns(element: str, n_bytes: int) -> Callable[..., None]:
    """Rows at the addresses of a table -> columns 20 elements apart -> rows at those of another table."""
    kind, stride = vector(element, 16), 20 * n_bytes

    def columns(ith: Int, nth: Int, table: Address, out: Address, other: Address) -> None:
        simd.load_columns(kind, table, 3 * n_bytes, out, stride)
        simd.store_columns(kind, out, stride, other, n_bytes)

    return columns


def make_moves() -> Callable[..., None]:
    eight, four = vector("u32", 8), vector("u64", 4)
    rotate = simd.rotate_right_by((0, 1, 4, 7, 8, 15, 28, 31))

    def moves(ith: Int, nth: Int, x: Address, out: Address) -> None:
        v = load(eight, x)
        store(out, rotate(v))
        store(out + 32, simd.rotate_right(v, v & 31))
        store(out + 64, simd.gather(four, x, (0, 3, 24, 1)))

    return moves


def make_lanes() -> Callable[..., None]:
    eight = vector("f32", 8)
    reverse = simd.shuffle_by((7, 6, 5, 4, 3, 2, 1, 0))
    interleave = simd.shuffle_pair_by((0, 8, 1, 9))

    def lanes(ith: Int, nth: Int, x: Address, out: Address) -> None:
        v = load(eight, x)
        store(out, reverse(v))
        store(out + 32, simd.concatenate(simd.high_half(v), simd.low_half(v)))
        store(out + 64, interleave(v, reverse(v)))
        store_f32(out + 80, simd.sum_lanes(v))
        store_f32(out + 84, simd.max_lanes(v))
        store_f32(out + 88, simd.min_lanes(v))
        store_f32(out + 92, simd.extract(v, 3))
        store(out + 96, simd.insert(v, 2, simd.f32(99.0)))

    return lanes


def make_wrong() -> Callable[..., None]:
    def wrong(ith: Int, nth: Int, x: Address) -> None:
        store(x, undefined_name)  # type: ignore[name-defined]  # noqa: F821  # the mistake under test

    return wrong


def make_unannotated() -> Callable[..., None]:
    def unannotated(ith: Int, nth: Int, x) -> None:  # type: ignore[no-untyped-def]  # the mistake under test
        store_i64(x, 1)

    return unannotated


def make_widening() -> Callable[..., None]:
    """A sum that begins as a whole number: what reads it in the loop is typed as one at first."""

    def widening(ith: Int, nth: Int, out: Address, n: Int) -> None:
        total = 0
        for _ in range(n):
            before = total
            copied = before
            total = copied + 0.5
        store_f32(out, simd.f32(total))

    return widening


def make_count() -> Callable[..., None]:
    """Adds up (step number) * (thread + 1): shows who ran what, and in which order."""

    def count(ith: Int, nth: Int, log: Address, code: Int) -> None:
        mine = log + ith * 1024 * 8
        used = load_i64(mine)
        store_i64(mine + 8 + used * 8, code * 100 + nth)
        store_i64(mine, used + 1)

    return count


def make_sum_neighbours() -> Callable[..., None]:
    """Each thread writes its part of `out` from all of `x`: wrong at once if a barrier does not hold."""

    def sum_neighbours(ith: Int, nth: Int, x: Address, out: Address, n: Int) -> None:
        for i in range(n * ith // nth, n * (ith + 1) // nth):
            store_i64(out + i * 8, load_i64(x + i * 8) + load_i64(x + (n - 1 - i) * 8) + 1)

    return sum_neighbours


def make_wait() -> Callable[..., None]:
    """Waits until a word is no longer 0."""

    def wait(ith: Int, nth: Int, word: Address) -> None:
        while simd.atomic_load(word) == 0:
            simd.pause()

    return wait


def make_note_part() -> Callable[..., None]:
    """Counts one for each of its n shares, after some time: log[ith] += 1 where there are n parts.

    Nothing is counted if a share of the step before is missing.
    """

    def note_part(ith: Int, nth: Int, before: Address, log: Address, n: Int, pauses: Int) -> None:
        for i in range(n * ith // nth, n * (ith + 1) // nth):
            for _ in range(pauses):
                simd.pause()
            missing = 0
            if before != 0:
                for other in range(n):
                    if load_i64(before + other * 8) <= load_i64(log + i * 8):
                        missing = 1
            if missing == 0:
                store_i64(log + i * 8, load_i64(log + i * 8) + 1)

    return note_part
