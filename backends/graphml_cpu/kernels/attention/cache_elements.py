"""How the register tiles of attention read the elements of a cache: one vector at a time, as LLVM IR.

Knows the cache types and their blocks; knows nothing of cells, tiles or attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import llvmlite.ir as ir
from graphml_quant.iq4_nl import LEVELS

from graphml.errors import BackendError
from graphml.ir.cache_types import CACHE_DTYPES
from graphml.ir.dtype import dtype as dtype_of
from graphml_cpu import target
from graphml_cpu.simd import build
from graphml_cpu.simd.bytes import emit_lookup16
from graphml_cpu.simd.types import VectorType, splat_value

_at, _load = build.shifted, build.load

_I8, _I16 = ir.IntType(8), ir.IntType(16)


@dataclass(frozen=True)
class CacheElements:
    """How rows of a cache type are read as float32 vectors of `lanes` elements.

    A row is made of groups: `elements` in `n_bytes` bytes, `vectors` vectors. `load(builder, group, part)`:
    IR for vector `part` of the group at an address.
    """

    elements: int
    n_bytes: int
    vectors: int
    load: Callable[[ir.IRBuilder, ir.Value, int], ir.Value]

    def load_at(self, builder: ir.IRBuilder, row: ir.Value, vector: int) -> ir.Value:
        """IR for vector number `vector` of the row at an address."""
        group, part = divmod(vector, self.vectors)
        return self.load(builder, _at(builder, row, group * self.n_bytes), part)


def row_bytes(dtype: str, n: int) -> int:
    """Bytes of n elements of a cache type; `BackendError` for another dtype."""
    if dtype not in CACHE_DTYPES:
        raise BackendError(f"kernels read caches of {', '.join(CACHE_DTYPES)}; got {dtype!r}")
    return dtype_of(dtype).bytes_for(n)


def make_elements(dtype: str, lanes: int) -> CacheElements:
    """The reader of a cache type; for blocks of 32 `lanes` divides 16. `BackendError` for another dtype."""
    item_bytes = row_bytes(dtype, 32) // 32
    plain = {"f32": _load_f32, "f16": _load_f16, "bf16": _load_bf16}
    if dtype in plain:
        load = plain[dtype]
        return CacheElements(
            lanes, lanes * item_bytes, 1, lambda builder, group, part: load(builder, group, lanes)
        )
    quantised = _QUANTISED[dtype]
    return CacheElements(
        32,
        row_bytes(dtype, 32),
        32 // lanes,
        lambda builder, group, part: quantised(builder, group, part * lanes, lanes),
    )


def _single(lanes: int) -> ir.VectorType:
    return ir.VectorType(ir.FloatType(), lanes)


def _load_f32(builder: ir.IRBuilder, address: ir.Value, lanes: int) -> ir.Value:
    return _load(builder, address, _single(lanes))


def _load_f16(builder: ir.IRBuilder, address: ir.Value, lanes: int) -> ir.Value:
    if target.current().has_f16c:
        halves = _load(builder, address, ir.VectorType(ir.HalfType(), lanes))
        return builder.fpext(halves, _single(lanes))
    return build.half_to_single(builder, _words(builder, address, lanes))


def _load_bf16(builder: ir.IRBuilder, address: ir.Value, lanes: int) -> ir.Value:
    bits = _words(builder, address, lanes)
    return builder.bitcast(builder.shl(bits, build.constant(bits.type, 16)), _single(lanes))


def _words(builder: ir.IRBuilder, address: ir.Value, lanes: int) -> ir.Value:
    words = _load(builder, address, ir.VectorType(_I16, lanes))
    return builder.zext(words, ir.VectorType(build.I32, lanes))


def _scale(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """The half at an address as a float32."""
    if target.current().has_f16c:
        return builder.fpext(_load(builder, address, ir.HalfType()), ir.FloatType())
    return build.half_to_single(builder, builder.zext(_load(builder, address, _I16), build.I32))


def _splat(builder: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    return splat_value(builder, value, VectorType("f32", lanes))


def _integers(builder: ir.IRBuilder, address: ir.Value, lanes: int) -> ir.Value:
    """Unsigned bytes at an address as int32."""
    return builder.zext(_load(builder, address, ir.VectorType(_I8, lanes)), ir.VectorType(build.I32, lanes))


def _nibbles(builder: ir.IRBuilder, packed: ir.Value, first: int, lanes: int) -> ir.Value:
    """Nibbles of 16 bytes, int32, for elements from `first` on: low ones are the first half of a block."""
    wide = _integers(builder, _at(builder, packed, first % 16), lanes)
    if first < 16:
        return builder.and_(wide, build.constant(wide.type, 15))
    return builder.lshr(wide, build.constant(wide.type, 4))


def _fifth_bits(builder: ir.IRBuilder, address: ir.Value, first: int, lanes: int) -> ir.Value:
    """16 where the bit of an element is set, of 32 bits at an address, from element `first` on; int32."""
    wide = ir.VectorType(build.I32, lanes)
    word = splat_value(builder, _load(builder, address, build.I32), VectorType("i32", lanes))
    masks = ir.Constant(wide, [build.I32(1 << (first + lane)) for lane in range(lanes)])
    is_set = builder.icmp_unsigned("!=", builder.and_(word, masks), build.constant(wide, 0))
    return builder.select(is_set, build.constant(wide, 16), build.constant(wide, 0))


def _scaled(builder: ir.IRBuilder, numbers: ir.Value, block: ir.Value) -> ir.Value:
    """d q, for int32 numbers q of a block."""
    lanes = numbers.type.count
    wide = builder.sitofp(numbers, _single(lanes))
    return builder.fmul(wide, _splat(builder, _scale(builder, block), lanes))


def _scaled_from(builder: ir.IRBuilder, numbers: ir.Value, block: ir.Value) -> ir.Value:
    """d q + m, for int32 numbers q of a block, rounded twice as everywhere."""
    least = _splat(builder, _scale(builder, _at(builder, block, 2)), numbers.type.count)
    return builder.fadd(_scaled(builder, numbers, block), least)


def _load_q8_0(builder: ir.IRBuilder, block: ir.Value, first: int, lanes: int) -> ir.Value:
    """d q."""
    numbers = _load(builder, _at(builder, block, 2 + first), ir.VectorType(_I8, lanes))
    return _scaled(builder, builder.sext(numbers, ir.VectorType(build.I32, lanes)), block)


def _load_q4_0(builder: ir.IRBuilder, block: ir.Value, first: int, lanes: int) -> ir.Value:
    """d (q - 8)."""
    numbers = _nibbles(builder, _at(builder, block, 2), first, lanes)
    return _scaled(builder, builder.sub(numbers, build.constant(numbers.type, 8)), block)


def _load_q4_1(builder: ir.IRBuilder, block: ir.Value, first: int, lanes: int) -> ir.Value:
    """d q + m."""
    return _scaled_from(builder, _nibbles(builder, _at(builder, block, 4), first, lanes), block)


def _load_q5_0(builder: ir.IRBuilder, block: ir.Value, first: int, lanes: int) -> ir.Value:
    """d (q - 16)."""
    low = _nibbles(builder, _at(builder, block, 6), first, lanes)
    numbers = builder.or_(low, _fifth_bits(builder, _at(builder, block, 2), first, lanes))
    return _scaled(builder, builder.sub(numbers, build.constant(numbers.type, 16)), block)


def _load_q5_1(builder: ir.IRBuilder, block: ir.Value, first: int, lanes: int) -> ir.Value:
    """d q + m."""
    low = _nibbles(builder, _at(builder, block, 8), first, lanes)
    numbers = builder.or_(low, _fifth_bits(builder, _at(builder, block, 4), first, lanes))
    return _scaled_from(builder, numbers, block)


def _load_iq4_nl(builder: ir.IRBuilder, block: ir.Value, first: int, lanes: int) -> ir.Value:
    """d LEVELS[i]. All 16 indices of a half are looked up, which is one instruction; LLVM does so once."""
    half = ir.VectorType(_I8, 16)
    packed = _load(builder, _at(builder, block, 2), half)
    index = (
        builder.and_(packed, build.constant(half, 15))
        if first < 16
        else builder.lshr(packed, build.constant(half, 4))
    )
    table = ir.Constant(half, [_I8(int(level)) for level in LEVELS])
    looked_up = emit_lookup16(builder, table, index)
    numbers = build.shuffle(builder, looked_up, None, range(first % 16, first % 16 + lanes))
    return _scaled(builder, builder.sext(numbers, ir.VectorType(build.I32, lanes)), block)


_QUANTISED = {
    "q8_0": _load_q8_0,
    "q4_0": _load_q4_0,
    "q4_1": _load_q4_1,
    "q5_0": _load_q5_0,
    "q5_1": _load_q5_1,
    "iq4_nl": _load_iq4_nl,
}
"""Format -> IR for elements `first` to `first` + `lanes` of the block at an address."""
