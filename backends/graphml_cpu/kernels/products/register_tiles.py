"""What the register tiles of matrix products share: rows of addresses, tuples of sums, transposition.

A tile is W weight rows, the lanes of a vector, times a handful of tokens, one sum vector each. Knows no
format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir

from graphml_cpu.frontend import types
from graphml_cpu.frontend.operation import operation
from graphml_cpu.simd import F32, WIDTH, build

VECTOR_BYTES = WIDTH * 4


def row_addresses(builder: ir.IRBuilder, at: ir.Value, row_bytes: ir.Value, last: ir.Value) -> list[ir.Value]:
    """IR: addresses of W rows, `row_bytes` apart, but none further than `last` bytes behind the first."""
    addresses = []
    for row in range(WIDTH):
        offset = builder.mul(row_bytes, build.I64(row))
        bounded = builder.select(builder.icmp_signed("<", offset, last), offset, last)
        addresses.append(builder.add(at, bounded))
    return addresses


def join(builder: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    """IR: the lanes of all parts in one vector; the number of parts is a power of two."""
    while len(parts) > 1:
        parts = [build.concatenate(builder, parts[i], parts[i + 1]) for i in range(0, len(parts), 2)]
    return parts[0]


@operation
def store_tuple(address: Any, vectors: Any) -> Any:
    """Store the vectors of a tuple one after the other."""

    def emit(builder: ir.IRBuilder, *args: Any) -> None:
        for index in range(len(vectors)):
            value = builder.extract_value(args[1], index)
            at = builder.add(args[0], build.I64(index * VECTOR_BYTES))
            builder.store(value, build.pointer(builder, at, value.type), align=4)

    return types.none(types.int64, vectors), emit


def make_load_tuple(count: int) -> Callable[..., Any]:
    """An operation `(address)` -> the `count` F32 vectors that lie there, one after the other."""

    def load_tuple(address: Any) -> Any:
        def emit(builder: ir.IRBuilder, *args: Any) -> Any:
            vectors = []
            for index in range(count):
                at = builder.add(args[0], build.I64(index * VECTOR_BYTES))
                vectors.append(builder.load(build.pointer(builder, at, F32.llvm_type), align=4))
            return tuple(vectors)

        return types.UniTuple(F32, count)(types.int64), emit

    return operation(load_tuple)


def make_token_addresses(tokens: int, stored: bool = False) -> Callable[..., Any]:
    """An operation `(x, stride, last)` -> addresses of `tokens` rows, none further than `last` behind x.

    stored: x has the addresses of the rows, `stride` bytes apart.
    """

    def token_addresses(x: Any, stride: Any, last: Any) -> Any:
        def emit(builder: ir.IRBuilder, *args: Any) -> Any:
            result = []
            for token in range(tokens):
                offset = builder.mul(args[1], build.I64(token))
                bounded = builder.select(builder.icmp_signed("<", offset, args[2]), offset, args[2])
                at = builder.add(args[0], bounded)
                result.append(builder.load(build.pointer(builder, at, build.I64), align=8) if stored else at)
            return tuple(result)

        return types.UniTuple(types.int64, tokens)(types.int64, types.int64, types.int64), emit

    return operation(token_addresses)


def make_zeros(count: int) -> Callable[..., Any]:
    """An operation `()` -> `count` F32 vectors of zeros."""

    def zeros() -> Any:
        def emit(builder: ir.IRBuilder, *_args: Any) -> Any:
            zero_value = build.constant(F32.llvm_type, 0)
            return (zero_value,) * count

        return types.UniTuple(F32, count)(), emit

    return operation(zeros)


@operation
def transpose(source: Any, row_bytes: Any, destination: Any, distance: Any) -> Any:
    """`transpose(source, row_bytes, destination, distance)`: W x W float32, rows `row_bytes` apart.

    Column c is stored at `destination` + c * `distance` bytes.
    """

    def emit(builder: ir.IRBuilder, *args: Any) -> None:
        vectors = []
        for row in range(WIDTH):
            at = builder.add(args[0], builder.mul(args[1], build.I64(row)))
            vectors.append(builder.load(build.pointer(builder, at, F32.llvm_type), align=4))
        step = 1
        while step < WIDTH:
            # Swap the off-diagonal halves of every square of 2 * step rows and lanes.
            upper = [WIDTH + lane - step if lane & step else lane for lane in range(WIDTH)]
            lower = [WIDTH + lane if lane & step else lane + step for lane in range(WIDTH)]
            for row in range(WIDTH):
                if not row & step:
                    a, b = vectors[row], vectors[row + step]
                    vectors[row] = build.shuffle(builder, a, b, upper)
                    vectors[row + step] = build.shuffle(builder, a, b, lower)
            step *= 2
        for column, value in enumerate(vectors):
            at = builder.add(args[2], builder.mul(args[3], build.I64(column)))
            builder.store(value, build.pointer(builder, at, value.type), align=4)

    return types.none(*[types.int64] * 4), emit
