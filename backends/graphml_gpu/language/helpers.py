"""Functions of the language written in it: reductions over a group, bytes of buffers, portable dot products.

Each has a version for every device; what the device reports chooses a better one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from graphml_gpu.language.functions import function
from graphml_gpu.language.names import (
    barrier,
    bitcast,
    exp,
    group_size,
    has_dot4,
    has_subgroups,
    local_index,
    packed_dot4,
    select,
    shared_array,
    subgroup_count,
    subgroup_id,
    subgroup_lane,
    subgroup_max,
    subgroup_size_min,
    subgroup_sum,
    subgroup_xor,
    type_of,
    unpack_half2,
    unroll,
)
from graphml_gpu.language.types import Array, Read, Vector, f32, i32, i32x4, u32, u32x4

Value = TypeVar("Value", int, float)


def halves(n: int) -> tuple[int, ...]:
    """The steps of a reduction of n values in a tree: the first power of two from n on, halved down to 1."""
    whole = 1 << (n - 1).bit_length()
    return tuple(whole >> i for i in range(1, whole.bit_length()))


@function
def add(a: Value, b: Value) -> Value:
    """a + b."""
    return a + b


@function
def larger(a: Value, b: Value) -> Value:
    """The larger of a and b."""
    return max(a, b)


@function
def most_subgroups() -> int:
    """How many subgroups the workgroup has at most: the last may be filled in part."""
    return (group_size() + subgroup_size_min() - 1) // subgroup_size_min()


@function
def group_sum(x: Value) -> Value:
    """The sum over the workgroup, for all of its invocations. All must call it."""
    return group_reduce(x, subgroup_sum, add)


@function
def group_max(x: Value) -> Value:
    """The largest value of the workgroup, for all of its invocations. All must call it."""
    return group_reduce(x, subgroup_max, larger)


@function
def group_reduce(
    x: Value, SUBGROUP: Callable[[Value], Value], PAIR: Callable[[Value, Value], Value]
) -> Value:
    """A reduction over the workgroup: first in subgroups where there are any, then in shared memory."""
    if group_size() == 1:
        return x
    if has_subgroups() and group_size() <= subgroup_size_min():
        return SUBGROUP(x)
    if has_subgroups():
        one_each = shared_array(type_of(x), most_subgroups())
        inner = SUBGROUP(x)
        if subgroup_lane() == 0:
            one_each[subgroup_id()] = inner
        barrier()
        total = one_each[0]
        for i in range(1, subgroup_count()):
            total = PAIR(total, one_each[i])
        barrier()
        return total
    partial = shared_array(type_of(x), group_size())
    partial[local_index()] = x
    barrier()
    result = reduce_shared(partial, 0, group_size(), PAIR)
    barrier()
    return result


@function
def reduce_shared(partial: Array[Value], begin: u32, N: int, PAIR: Callable[[Value, Value], Value]) -> Value:
    """A reduction of N shared values for each of N invocations that begin with `begin`: two steps of sqrt(N).

    A step that halves would have as few operations on paths, but a barrier for each power of two.
    """
    width = N if N <= 8 else 1 << (N.bit_length() // 2)
    if width < N:
        me = local_index() - begin
        if me < width:
            some = partial[begin + me]
            for i in range(me + width, N, width):
                some = PAIR(some, partial[begin + i])
            partial[begin + me] = some
        barrier()
    result = partial[begin]
    for i in range(1, width):
        result = PAIR(result, partial[begin + i])
    return result


@function
def cluster_sum(x: Value, WIDTH: int) -> Value:
    """The sum over WIDTH neighbours (a power of two, dividing the group), for each. All must call it."""
    return cluster_reduce(x, WIDTH, add)


@function
def cluster_max(x: Value, WIDTH: int) -> Value:
    """The largest value of WIDTH neighbours (a power of two, dividing the group). All must call it."""
    return cluster_reduce(x, WIDTH, larger)


@function
def cluster_reduce(x: Value, WIDTH: int, PAIR: Callable[[Value, Value], Value]) -> Value:
    """A reduction over neighbours: by shuffles where a subgroup holds them, else in shared memory."""
    assert group_size() % WIDTH == 0, "WIDTH: wanted a number that divides the group"
    assert WIDTH & (WIDTH - 1) == 0, "WIDTH: wanted a power of two"
    if WIDTH == 1:
        return x
    if has_subgroups() and subgroup_size_min() >= WIDTH:
        reduced = x
        for step in unroll(halves(WIDTH)):
            reduced = PAIR(reduced, subgroup_xor(reduced, step))
        return reduced
    partial = shared_array(type_of(x), group_size())
    partial[local_index()] = x
    barrier()
    result = reduce_shared(partial, local_index() // WIDTH * WIDTH, WIDTH, PAIR)
    barrier()
    return result


@function
def tanh(x: f32) -> f32:
    """The tanh of x, to 3e-7 of itself: devices have some that overflow, or are wrong for small x."""
    square = x * x
    tail = square * (0.13333333 + square * (-0.053968254 + square * 0.021869488))
    near_0 = x + x * square * (tail - 0.33333333)
    falling = exp(-2.0 * abs(x))
    far = (1.0 - falling) / (1.0 + falling)
    return select(abs(x) < 0.3, near_0, select(x < 0.0, -far, far))


@function
def byte_at(buffer: Read[u32], index: u32) -> u32:
    """One byte of a buffer of words."""
    return (buffer[index >> 2] >> ((index & 3) << 3)) & 255


@function
def short_at(buffer: Read[u32], offset: u32) -> u32:
    """Two bytes of a buffer of words; offset: in bytes, even."""
    return (buffer[offset >> 2] >> ((offset & 2) << 3)) & 65535


@function
def half_at(buffer: Read[u32], offset: u32) -> f32:
    """A half of a buffer of words; offset: in bytes, even."""
    return unpack_half2(short_at(buffer, offset)).x


@function
def word_at(buffer: Read[u32], offset: u32) -> u32:
    """Four bytes that begin at any byte of a buffer of words; words beyond the last byte are not read."""
    at = offset >> 2
    shift = (offset & 3) << 3
    low = buffer[at] >> shift
    return low if shift == 0 else low | (buffer[at + 1] << (32 - shift))


@function
def bf16_low(word: u32) -> f32:
    """The bfloat16 in the lower half of a word."""
    return bitcast(f32, word << 16)


@function
def bf16_high(word: u32) -> f32:
    """The bfloat16 in the upper half of a word."""
    return bitcast(f32, word & 0xFFFF0000)


@function
def signed_byte(word: u32, LANE: int) -> i32:
    """Byte LANE (0 to 3, the lowest first) of a word, with its sign."""
    return bitcast(i32, word << (24 - 8 * LANE)) >> 24


@function
def unpack_i8x4(word: u32) -> Vector[int]:
    """The four bytes of a word with their signs."""
    return bitcast(i32x4, u32x4(word << 24, word << 16, word << 8, word)) >> 24


@function
def unpack_u8x4(word: u32) -> Vector[int]:
    """The four bytes of a word."""
    return u32x4(word & 255, (word >> 8) & 255, (word >> 16) & 255, word >> 24)


@function
def dot4_i8(a: u32, b: u32, acc: i32) -> i32:
    """Acc + the product of four signed bytes with four."""
    if has_dot4():
        return packed_dot4(a, b, acc)
    products = unpack_i8x4(a) * unpack_i8x4(b)
    return acc + products.x + products.y + products.z + products.w
