"""Constant tables inside compiled code: codebooks and curves that a kernel looks up by address or by lane.

Knows bytes alone. The table is part of the object, so it may be kept on disk: no address of this process is
in it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import llvmlite.ir as ir

from graphml_cpu import target
from graphml_cpu.frontend import types
from graphml_cpu.frontend.operation import operation
from graphml_cpu.simd import build
from graphml_cpu.simd.types import VectorType

_BYTE, _ADDRESS = ir.IntType(8), ir.IntType(64)


def _address(builder: ir.IRBuilder, content: bytes) -> ir.Value:
    """IR: the address of a copy of `content` in the module, the same for all who ask."""
    kind = ir.ArrayType(_BYTE, len(content))
    name = f"table.{hashlib.sha256(content).hexdigest()[:16]}"
    variable = builder.module.globals.get(name)
    if variable is None:
        variable = ir.GlobalVariable(builder.module, kind, name)
        variable.linkage = "private"
        variable.global_constant = True
        variable.unnamed_addr = True
        variable.align = 64
        variable.initializer = ir.Constant(kind, bytearray(content))
    return builder.ptrtoint(variable, _ADDRESS)


def constant_table(content: bytes) -> Any:
    """An operation `f()`: the address (aligned to 64) of a read-only copy of `content` in the kernel's code.

    Made outside the kernel, in its factory, as the bytes are part of the code.
    """

    @operation
    def table() -> Any:
        return types.int64(), lambda builder: _address(builder, content)

    return table


def _load_each(
    builder: ir.IRBuilder, content: bytes, element: ir.Type, size: int, index: ir.Value
) -> ir.Value:
    """IR: lane by lane from memory, the element of `size` bytes at an index of a table."""
    table = _address(builder, content)
    selected = ir.Constant(ir.VectorType(element, index.type.count), ir.Undefined)
    for lane in range(index.type.count):
        number = builder.zext(builder.extract_element(index, build.I32(lane)), _ADDRESS)
        at = builder.add(table, builder.mul(number, _ADDRESS(size)))
        value = builder.load(build.pointer(builder, at, element), align=size)
        selected = builder.insert_element(selected, value, build.I32(lane))
    return selected


def word_lookup(words: Sequence[int]) -> Any:
    """An operation `f(index)`: words[index] for each of 32 lanes (u16), a power of two from 64 of words.

    Indices must be in range. AVX-512 keeps the table in registers and permutes.
    """
    kind = VectorType("u16", 32)
    element = kind.llvm_element
    content = b"".join(word.to_bytes(2, "little") for word in words)

    def emit_permutations(builder: ir.IRBuilder, index: ir.Value) -> ir.Value:
        tables = [
            ir.Constant(kind.llvm_type, [element(word) for word in words[first : first + 32]])
            for first in range(0, len(words), 32)
        ]
        parts = [
            build.call(
                builder,
                "llvm.x86.avx512.vpermi2var.hi.512",
                kind.llvm_type,
                [tables[i], index, tables[i + 1]],
            )
            for i in range(0, len(tables), 2)
        ]
        bit = 64
        while len(parts) > 1:
            masked = builder.and_(index, build.constant(kind.llvm_type, bit))
            upper = builder.icmp_unsigned("!=", masked, build.constant(kind.llvm_type, 0))
            parts = [builder.select(upper, parts[i + 1], parts[i]) for i in range(0, len(parts), 2)]
            bit *= 2
        return parts[0]

    @operation
    def look_up(index: Any) -> Any:
        if index != kind:
            return None

        def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
            if target.current().vector_bytes == 64:
                return emit_permutations(builder, args[0])
            return _load_each(builder, content, element, 2, args[0])

        return kind(kind), emit

    return look_up


def float_lookup(values: Sequence[float]) -> Any:
    """An operation `f(index)`: values[index], of 16 float32, for each lane of an index (i32) from 0 to 15.

    AVX-512 and AVX2 keep the table in registers and permute.
    """
    single = ir.FloatType()

    def constant(first: int, count: int) -> ir.Constant:
        part = values[first : first + count]
        return ir.Constant(ir.VectorType(single, count), [single(value) for value in part])

    def permute(builder: ir.IRBuilder, index: ir.Value) -> ir.Value:
        level, lanes = target.current(), index.type.count
        if lanes > level.f32_lanes:
            return build.by_halves(builder, permute, index)
        kind = ir.VectorType(single, lanes)
        if level.vector_bytes == 64:
            table = constant(0, 16)
            return build.call(builder, "llvm.x86.avx512.permvar.sf.512", kind, [table, index])
        low, high = (
            build.call(builder, "llvm.x86.avx2.permps", kind, [constant(first, 8), index]) for first in (0, 8)
        )
        is_low = builder.icmp_signed("<", index, build.constant(index.type, 8))
        return builder.select(is_low, low, high)

    @operation
    def look_up(index: Any) -> Any:
        if not isinstance(index, VectorType) or index.element != "i32":
            return None

        def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
            level = target.current()
            if level.architecture != "x86" or level.vector_bytes < 32:
                return _load_each(builder, struct.pack("<16f", *values), single, 4, args[0])
            return permute(builder, args[0])

        return index.like("f32")(index), emit

    return look_up
