"""A tile of attention with a memory: four rows of a head's matrix [V, K] pass over a run of tokens.

Rows of the matrix do not meet: each is read and changed with the token's key, query and decay, and with one
element of its value. So a tile stays in registers while it passes over the tokens. Knows vectors and
addresses; knows nothing of heads or sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ir

from graphml_cpu.frontend import types
from graphml_cpu.frontend.operation import operation
from graphml_cpu.kernels.attention.tiles import sums_of_four
from graphml_cpu.simd import build

TILE_ROWS = 4
DELTA, PLAIN, REPLACE = "delta", "plain", "replace"  # what a token does to the memory

_F32 = ir.FloatType()
_FOUR = ir.VectorType(_F32, TILE_ROWS)
Vector = list[ir.Value]  # K elements, in registers of `lanes`


@dataclass(frozen=True)
class _Rows:
    """IR on vectors of K elements and on four of them, the rows of a tile."""

    builder: ir.IRBuilder
    single: ir.VectorType
    vectors: int

    def number(self, address: ir.Value, kind: ir.Type) -> ir.Value:
        return self.builder.load(build.pointer(self.builder, address, kind), align=4)

    def vector(self, address: ir.Value) -> Vector:
        step = self.single.count * 4
        places = [build.pointer(self.builder, address, self.single, i * step) for i in range(self.vectors)]
        return [self.builder.load(place, align=4) for place in places]

    def splat(self, value: ir.Value, kind: ir.VectorType) -> ir.Value:
        lane = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.IntType(32)(0))
        return build.shuffle(self.builder, lane, None, [0] * kind.count)

    def times(self, rows: list[Vector], factors: Vector) -> list[Vector]:
        """Rows times a vector, element by element."""
        return [[self.builder.fmul(a, b) for a, b in zip(row, factors, strict=True)] for row in rows]

    def dots(self, rows: list[Vector], vector: Vector) -> ir.Value:
        """The product of each row with the vector, [4]; two chains of additions a row."""
        totals = []
        for row in rows:
            sums: Vector = []
            for part, (a, b) in enumerate(zip(row, vector, strict=True)):
                if part < 2:
                    sums.append(self.builder.fmul(a, b))
                else:
                    sums[part % 2] = build.multiply_add(self.builder, a, b, sums[part % 2])
            totals.append(sums[0] if len(sums) == 1 else self.builder.fadd(*sums))
        return sums_of_four(self.builder, totals)

    def plus_outer(self, rows: list[Vector], column: ir.Value, vector: Vector) -> list[Vector]:
        """Rows + column vector^T."""
        lanes = range(TILE_ROWS)
        factors = [build.shuffle(self.builder, column, None, [row] * self.single.count) for row in lanes]
        return [
            [build.multiply_add(self.builder, factor, b, a) for a, b in zip(row, vector, strict=True)]
            for row, factor in zip(rows, factors, strict=True)
        ]


@dataclass(frozen=True)
class _Operands:
    """Addresses of what belongs to one token; `first` and `second` as of `make_memory_tile`."""

    q: ir.Value
    k: ir.Value
    v: ir.Value
    decay: ir.Value
    first: ir.Value
    second: ir.Value


def _one_token(
    g: _Rows, rows: list[Vector], at: _Operands, rule: str, each: bool, before: bool
) -> tuple[list[Vector], ir.Value]:
    """The rows after the token, and its y before it is scaled."""
    after = _one_update(g, rows, _faded(g, rows, at, each), at, rule)
    return after, g.dots(rows if before else after, g.vector(at.q))


def _faded(g: _Rows, rows: list[Vector], at: _Operands, each: bool) -> list[Vector]:
    fading = g.vector(at.decay) if each else [g.splat(g.number(at.decay, _F32), g.single)] * g.vectors
    return g.times(rows, fading)


def _one_update(g: _Rows, rows: list[Vector], after: list[Vector], at: _Operands, rule: str) -> list[Vector]:
    """The rows `after` their decay with what a key and a value change in them; rows: before it."""
    key, value = g.vector(at.k), g.number(at.v, _FOUR)
    if rule == DELTA:
        wrong = g.builder.fsub(value, g.dots(after, key))
        value = g.builder.fmul(g.splat(g.number(at.first, _F32), _FOUR), wrong)
    if rule == REPLACE:
        after = g.plus_outer(after, g.dots(rows, g.vector(at.first)), g.vector(at.second))
    return g.plus_outer(after, value, key)


def make_memory_tile(rule: str, k_width: int, lanes: int, each: bool, before: bool, updates: int = 1) -> Any:
    """An operation that takes four rows S of a head's memory over `count` tokens, and writes their y.

    `f(state, q, k, key_step, v, out, value_step, decay, decay_step, first, first_step, second, count, fresh,
    scale)`: float32 all of them, and steps from token to token in bytes. state [4, K], zeros if `fresh` is 1;
    q, k [K]; v, out [4], out may be v; decay [K] if `each`, else one number. DELTA: first is beta, a number;
    REPLACE: first and second are remove and replace [K]. `before`: y reads S as it was before the token.
    updates: DELTA alone has several in each token, with so many k, v and first behind each other.
    """
    assert updates == 1 or (rule == DELTA and not before)
    vectors = k_width // lanes

    def emit(builder: ir.IRBuilder, *args: Any) -> None:
        state, q, k, key_step, v, out, value_step, decay, decay_step, *others = args
        first, first_step, second, count, fresh, scale = others
        g = _Rows(builder, ir.VectorType(_F32, lanes), vectors)
        row_addresses = [builder.add(state, build.I64(row * k_width * 4)) for row in range(TILE_ROWS)]
        places = [
            build.pointer(builder, address, g.single, part * lanes * 4)
            for address in row_addresses
            for part in range(vectors)
        ]
        is_fresh = builder.icmp_signed("!=", fresh, build.I64(0))
        slots = [build.stack_slot(builder, g.single) for _ in places]
        for slot, place in zip(slots, places, strict=True):
            held = builder.load(place, align=4)
            builder.store(builder.select(is_fresh, build.constant(g.single, 0.0), held), slot)

        def held_rows() -> list[Vector]:
            parts = [builder.load(slot) for slot in slots]
            return [parts[row * vectors : (row + 1) * vectors] for row in range(TILE_ROWS)]

        def hold(rows: list[Vector]) -> None:
            for slot, part in zip(slots, (part for row in rows for part in row), strict=True):
                builder.store(part, slot)

        def operands(token: ir.Value, update: ir.Value) -> _Operands:
            places = (
                (q, token, key_step), (k, update, key_step), (v, update, value_step),
                (decay, token, decay_step), (first, update, first_step), (second, update, first_step),
            )  # fmt: skip
            return _Operands(*(builder.add(start, builder.mul(i, step)) for start, i, step in places))

        with build.counted_loop(builder, count) as index:
            if updates == 1:
                after, y = _one_token(g, held_rows(), operands(index, index), rule, each, before)
                hold(after)
            else:
                token_update = builder.mul(index, build.I64(updates))
                hold(_faded(g, held_rows(), operands(index, token_update), each))
                with build.counted_loop(builder, build.I64(updates)) as number:
                    at = operands(index, builder.add(token_update, number))
                    hold(_one_update(g, held_rows(), held_rows(), at, rule))
                y = g.dots(held_rows(), g.vector(operands(index, token_update).q))
            to = builder.add(out, builder.mul(index, value_step))
            y = builder.fmul(y, g.splat(scale, _FOUR))
            builder.store(y, build.pointer(builder, to, _FOUR), align=4)
        for slot, place in zip(slots, places, strict=True):
            builder.store(builder.load(slot), place, align=4)

    @operation
    def memory_tile(
        state: Any, q: Any, k: Any, key_step: Any, v: Any, out: Any, value_step: Any,
        decay: Any, decay_step: Any, first: Any, first_step: Any, second: Any, count: Any, fresh: Any,
        scale: Any,
    ) -> Any:  # fmt: skip
        return types.none(*[types.int64] * 14, types.float32), emit

    return memory_tile
