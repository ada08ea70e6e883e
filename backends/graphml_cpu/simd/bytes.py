"""IR of what levels do with bytes in instructions of their own: dot products of four, table lookup.

Knows which instructions of x86 and ARM the process's level has; everything also has a form for any processor.
"""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.ir as ir

from graphml_cpu import target
from graphml_cpu.simd import build

_I16 = ir.IntType(16)
_PSHUFB = {16: "llvm.x86.ssse3.pshuf.b.128", 32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}


def emit_dot4(builder: ir.IRBuilder, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """Each int32 lane of `total` plus four products of neighbours: unsigned of 0 to 127, and any signed.

    With VNNI or I8MM for every unsigned byte.
    """
    level = target.current()
    bits = total.type.count * 32
    if bits > level.vector_bytes * 8:
        return build.by_halves(builder, emit_dot4, total, unsigned, signed)
    if level.has_vnni and bits in (128, 256, 512):
        operands = [builder.bitcast(value, total.type) for value in (unsigned, signed)]
        return build.call(builder, f"llvm.x86.avx512.vpdpbusd.{bits}", total.type, [total, *operands])
    if level.vector_bytes == 32 and bits == 256:
        return _multiply_add_pairs(builder, total, unsigned, signed)
    if level.has_dotprod and bits == 128:
        name = "usdot" if level.has_i8mm else "sdot"
        return _arm_dot(builder, name, total, unsigned, signed)
    if level.architecture == "arm" and bits == 128:
        return _widening_pairs(builder, total, unsigned, signed)
    return _generic(builder, total, builder.zext, unsigned, signed)


def emit_dot4_signed(builder: ir.IRBuilder, total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """Each int32 lane of `total` plus four products of signed neighbours: any a, b of -127 to 127."""
    level = target.current()
    bits = total.type.count * 32
    if bits > level.vector_bytes * 8:
        return build.by_halves(builder, emit_dot4_signed, total, a, b)
    if level.has_dotprod and bits == 128:
        return _arm_dot(builder, "sdot", total, a, b)
    if level.architecture == "arm" and bits == 128:
        return _widening_pairs(builder, total, a, b)
    if level.vector_bytes == 16:
        return _generic(builder, total, builder.sext, a, b)
    # |a| * (b with a's sign). -128 becomes 128: as an unsigned byte it is exact here, 2 * 128 * 127 fits.
    magnitude = build.overloaded(builder, "abs", [a, ir.IntType(1)(0)])
    return emit_dot4(builder, total, magnitude, emit_with_sign(builder, b, a))


def emit_with_sign(builder: ir.IRBuilder, value: ir.Value, sign: ir.Value) -> ir.Value:
    """The bytes of `value` (not -128), negated where `sign` is negative; where it is zero, anything."""
    if target.current().vector_bytes == 32 and value.type.count == 32:
        return build.call(builder, "llvm.x86.avx2.psign.b", value.type, [value, sign])
    negative = builder.icmp_signed("<", sign, build.constant(sign.type, 0))
    return builder.select(negative, builder.neg(value), value)


def _multiply_add_pairs(
    builder: ir.IRBuilder, total: ir.Value, unsigned: ir.Value, signed: ir.Value
) -> ir.Value:
    """AVX2: pairs are summed in 16 bits, where 2 * 128 * 127 still fits."""
    sixteen = ir.VectorType(_I16, total.type.count * 2)
    pairs = build.call(builder, "llvm.x86.avx2.pmadd.ub.sw", sixteen, [unsigned, signed])
    ones = build.constant(sixteen, 1)
    return builder.add(total, build.call(builder, "llvm.x86.avx2.pmadd.wd", total.type, [pairs, ones]))


def _arm_dot(builder: ir.IRBuilder, name: str, total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    return build.call(builder, f"llvm.aarch64.neon.{name}.v4i32.v16i8", total.type, [total, a, b])


def _widening_pairs(builder: ir.IRBuilder, total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """ARM without dot products: smull, and pairs are summed in 16 bits, where 2 * 128 * 127 still fits."""
    wide = ir.VectorType(_I16, 8)
    halves = []
    for octets in (range(8), range(8, 16)):
        operands = [build.shuffle(builder, value, None, octets) for value in (a, b)]
        halves.append(build.call(builder, "llvm.aarch64.neon.smull.v8i16", wide, operands))
    pairs = build.call(builder, "llvm.aarch64.neon.addp.v8i16", wide, halves)
    return builder.add(
        total, build.call(builder, "llvm.aarch64.neon.saddlp.v4i32.v8i16", total.type, [pairs])
    )


def _generic(
    builder: ir.IRBuilder, total: ir.Value, widen: Callable[..., ir.Value], a: ir.Value, b: ir.Value
) -> ir.Value:
    """Products of 16-bit numbers, neighbours added: LLVM makes pmaddwd or its like of this."""
    lanes = total.type.count
    wide = ir.VectorType(build.I32, lanes * 4)
    products = builder.mul(widen(a, wide), builder.sext(b, wide))
    for count in (lanes * 4, lanes * 2):
        even = build.shuffle(builder, products, None, range(0, count, 2))
        odd = build.shuffle(builder, products, None, range(1, count, 2))
        products = builder.add(even, odd)
    return builder.add(total, products)


def emit_lookup16(builder: ir.IRBuilder, table: ir.Value, index: ir.Value) -> ir.Value:
    """table[index] per lane; a table of 16 bytes, indices from 0 to 15."""
    lanes, level = index.type.count, target.current()
    permutes = level.architecture == "arm" or (level.architecture == "x86" and level.name != "plain")
    if not permutes or lanes < 16:
        return builder.call(_lookup_by_comparing(builder.module, table.type, index.type), [table, index])
    if lanes > level.vector_bytes:
        return build.by_halves(builder, lambda builder, part: emit_lookup16(builder, table, part), index)
    if level.architecture == "x86":
        repeated = build.shuffle(builder, table, None, [lane % 16 for lane in range(lanes)])
        return build.call(builder, _PSHUFB[lanes], index.type, [repeated, index])
    return build.call(builder, "llvm.aarch64.neon.tbl1.v16i8", index.type, [table, index])


def _lookup_by_comparing(module: ir.Module, table: ir.Type, index: ir.Type) -> ir.Function:
    """A function that looks lanes up without an instruction for it.

    It is called: in place of each call its fifty instructions would take seconds to compile.
    """
    name = f"lookup16.{build.suffix(index)}"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(index, [table, index]), name)
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    function.attributes.add("readnone")
    builder = ir.IRBuilder(function.append_basic_block())
    entries, indices = function.args
    looked_up = build.constant(index, 0)
    for entry in range(16):
        chosen = builder.icmp_unsigned("==", indices, build.constant(index, entry))
        value = build.shuffle(builder, entries, None, [entry] * index.count)
        looked_up = builder.select(chosen, value, looked_up)
    builder.ret(looked_up)
    return function


def emit_fours(
    builder: ir.IRBuilder, address: ir.Value, offset: int, count: int, lanes: int
) -> list[ir.Value]:
    """`count` groups of four bytes from address + offset on, each group in every one of `lanes` int32 lanes.

    `count` is a multiple of four on 16 bytes each. x86 repeats a group while it loads it; ARM's dot products
    take a group of a loaded register.
    """
    groups = []
    if target.current().architecture == "arm":
        four = ir.VectorType(build.I32, 4)
        for first in range(0, count, 4):
            where = build.pointer(builder, address, four, offset + 4 * first)
            loaded = builder.load(where, align=4)
            groups += [build.shuffle(builder, loaded, None, [group] * lanes) for group in range(4)]
        return groups
    kind = ir.VectorType(build.I32, lanes)
    for group in range(count):
        word = builder.load(build.pointer(builder, address, build.I32, offset + 4 * group), align=4)
        first = builder.insert_element(ir.Constant(kind, ir.Undefined), word, build.I32(0))
        groups.append(build.shuffle(builder, first, None, [0] * lanes))
    return groups
