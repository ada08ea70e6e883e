"""Small pieces of LLVM IR that the operations of the other modules are made of.

Knows llvmlite's builder and the level of the process; knows nothing of kernels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import llvmlite.ir as ir

from graphml_cpu import target
from graphml_cpu.frontend.types import VectorType

I32 = ir.IntType(32)
I64 = ir.IntType(64)


def call(builder: ir.IRBuilder, name: str, result: ir.Type, arguments: Sequence[ir.Value]) -> ir.Value:
    """Call the LLVM intrinsic or external function `name`."""
    module = builder.module
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, function_type, name)
    return builder.call(function, arguments)


def suffix(llvm_type: ir.Type) -> str:
    """How LLVM spells `llvm_type` at the end of an overloaded intrinsic's name: `v16f32`, `f32`, `i64`."""
    if isinstance(llvm_type, ir.VectorType):
        return f"v{llvm_type.count}{suffix(llvm_type.element)}"
    if isinstance(llvm_type, ir.IntType):
        return f"i{llvm_type.width}"
    return {"half": "f16", "float": "f32", "double": "f64"}[str(llvm_type)]


def overloaded(builder: ir.IRBuilder, name: str, arguments: Sequence[ir.Value]) -> ir.Value:
    """Call `llvm.<name>.<type>` whose result has the type of its first argument."""
    first = arguments[0].type
    return call(builder, f"llvm.{name}.{suffix(first)}", first, arguments)


def constant(llvm_type: ir.Type, value: float) -> ir.Constant:
    """`value`, in every lane if `llvm_type` is a vector."""
    if isinstance(llvm_type, ir.VectorType):
        return ir.Constant(llvm_type, [ir.Constant(llvm_type.element, value)] * llvm_type.count)
    return ir.Constant(llvm_type, value)


def shuffle(builder: ir.IRBuilder, a: ir.Value, b: ir.Value | None, indices: Sequence[int]) -> ir.Value:
    """Lanes of `a` (0 to n-1) and `b` (n to 2n-1) in the order of `indices`."""
    other = ir.Constant(a.type, ir.Undefined) if b is None else b
    mask = ir.Constant(ir.VectorType(I32, len(indices)), [I32(index) for index in indices])
    return builder.shuffle_vector(a, other, mask)


def concatenate(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The lanes of `a`, then those of `b`."""
    return shuffle(builder, a, b, range(a.type.count * 2))


def by_halves(
    builder: ir.IRBuilder, emit: Callable[..., ir.Value], *wider_than_a_register: ir.Value
) -> ir.Value:
    """What `emit` makes of the lower halves of the vectors, then of the upper ones."""
    parts = []
    for upper in (0, 1):
        halves = []
        for value in wider_than_a_register:
            count = value.type.count // 2
            halves.append(shuffle(builder, value, None, range(upper * count, (1 + upper) * count)))
        parts.append(emit(builder, *halves))
    return concatenate(builder, *parts)


def pointer(builder: ir.IRBuilder, address: ir.Value, pointee: ir.Type, offset: int = 0) -> ir.Value:
    """An integer address, so many bytes further on, as a pointer to `pointee`.

    What lies at several offsets from one address is found with one register; a sum of integers is not seen
    as an address with an offset, and LLVM keeps each such sum in a register of its own through a loop.
    """
    if not offset:
        return builder.inttoptr(address, pointee.as_pointer())
    base = builder.inttoptr(address, ir.IntType(8).as_pointer())
    return builder.bitcast(builder.gep(base, [I64(offset)]), pointee.as_pointer())


def shifted(builder: ir.IRBuilder, address: ir.Value, offset: int) -> ir.Value:
    """An integer address, so many bytes further on."""
    return builder.add(address, I64(offset)) if offset else address


def load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    """What is at an integer address, aligned or not."""
    return builder.load(pointer(builder, address, kind), align=1)


def store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    """Write a value to an integer address, aligned or not."""
    builder.store(value, pointer(builder, address, value.type), align=1)


def prefetch(builder: ir.IRBuilder, where: ir.Value, locality: int, write: int = 0) -> None:
    """Fetch the cache line at a pointer for reading: 3 into every level of cache ... 0: read once."""
    arguments = [where, I32(write), I32(locality), I32(1)]
    call(builder, "llvm.prefetch.p0", ir.VoidType(), arguments)


def multiply_add(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """A * b + c of floats, rounded once where the level can."""
    if target.current().has_fma:
        return overloaded(builder, "fma", [a, b, c])
    return builder.fadd(builder.fmul(a, b), c)


def mask_of_bits(builder: ir.IRBuilder, bits: ir.Value, lanes: int) -> ir.Value:
    """A mask from as many bits, the lowest first, for processors whose masks are vectors.

    LLVM would take each bit from its byte by itself.
    """
    octets = builder.bitcast(bits, ir.VectorType(ir.IntType(8), lanes // 8))
    each = shuffle(builder, octets, None, [lane // 8 for lane in range(lanes)])
    own = ir.Constant(each.type, [ir.IntType(8)(1 << lane % 8) for lane in range(lanes)])
    return builder.icmp_unsigned("==", builder.and_(each, own), own)


def resize_integers(
    builder: ir.IRBuilder, value: ir.Value, source: VectorType, target: VectorType
) -> ir.Value:
    """Integer lanes of `source` widened (by the source's sign) or truncated to those of `target`."""
    if target.bits == source.bits:
        return value
    if target.bits < source.bits:
        return builder.trunc(value, target.llvm_type)
    return (builder.sext if source.is_signed else builder.zext)(value, target.llvm_type)


def half_to_single(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """IEEE half precision in integer lanes of 32 bits -> float32, for processors without the instruction.

    The exponent is rebased by a multiplication, which also turns subnormal halves into normal numbers.
    """
    integer = bits.type
    single = (
        ir.VectorType(ir.FloatType(), integer.count) if isinstance(integer, ir.VectorType) else ir.FloatType()
    )
    sign = builder.shl(builder.and_(bits, constant(integer, 0x8000)), constant(integer, 16))
    magnitude = builder.shl(builder.and_(bits, constant(integer, 0x7FFF)), constant(integer, 13))
    scaled = builder.fmul(builder.bitcast(magnitude, single), constant(single, 2.0**112))
    special = builder.icmp_unsigned(">=", magnitude, constant(integer, 0x7C00 << 13))
    finite = builder.bitcast(scaled, integer)
    infinite = builder.or_(magnitude, constant(integer, 0x7F800000))
    return builder.bitcast(builder.or_(builder.select(special, infinite, finite), sign), single)


def single_to_half(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Float32 -> IEEE half precision (nearest even) in integer lanes of 32 bits, without the instruction.

    Adding a number whose last bit is the half's last bit makes the addition itself round.
    """
    single = value.type
    integer = ir.VectorType(I32, single.count) if isinstance(single, ir.VectorType) else I32
    bits = builder.bitcast(value, integer)
    sign = builder.lshr(builder.and_(bits, constant(integer, 0x80000000)), constant(integer, 16))
    magnitude = builder.and_(bits, constant(integer, 0x7FFFFFFF))
    # 2**112 overflows what is too large for a half; 2**-110 brings the rest back (times four).
    scaled = builder.fmul(builder.bitcast(magnitude, single), constant(single, 2.0**112))
    scaled = builder.fmul(scaled, constant(single, 2.0**-110))
    exponent = builder.and_(magnitude, constant(integer, 0x7F800000))
    smallest = constant(integer, 0x71000000 >> 1)
    exponent = builder.select(builder.icmp_unsigned("<", exponent, smallest), smallest, exponent)
    rounder = builder.bitcast(builder.add(exponent, constant(integer, 0x07800000)), single)
    rounded = builder.bitcast(builder.fadd(rounder, scaled), integer)
    high = builder.and_(builder.lshr(rounded, constant(integer, 13)), constant(integer, 0x7C00))
    packed = builder.add(high, builder.and_(rounded, constant(integer, 0xFFF)))
    is_nan = builder.icmp_unsigned(">", magnitude, constant(integer, 0x7F800000))
    return builder.or_(sign, builder.select(is_nan, constant(integer, 0x7E00), packed))


def stack_slot(builder: ir.IRBuilder, llvm_type: ir.Type, count: int = 1) -> ir.Value:
    """A pointer to memory of the function's own for so many values; the same at every call.

    It holds nothing yet: LLVM makes a store of each byte of an array that is cleared, and takes seconds over
    thousands of them.
    """
    with builder.goto_entry_block():
        return builder.alloca(llvm_type, size=count)


@contextlib.contextmanager
def counted_loop(builder: ir.IRBuilder, count: ir.Value) -> Iterator[ir.Value]:
    """Within, the body of a loop is emitted; the index from 0 below `count`."""
    before = builder.block
    begin, body, end = (builder.append_basic_block() for _ in range(3))
    builder.branch(begin)
    builder.position_at_end(begin)
    index = builder.phi(count.type)
    index.add_incoming(count.type(0), before)
    builder.cbranch(builder.icmp_signed("<", index, count), body, end)
    builder.position_at_end(body)
    yield index
    index.add_incoming(builder.add(index, count.type(1), flags=("nsw",)), builder.block)
    builder.branch(begin)
    builder.position_at_end(end)
