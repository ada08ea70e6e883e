"""Constant tables inside compiled code: codebooks and curves that a kernel looks up by address or by lane.

Knows bytes alone. The table is part of the object, so it may be kept on disk: no address of this process is
in it.
"""

from __future__ import annotations

import hashlib
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

    def emit_loads(builder: ir.IRBuilder, index: ir.Value) -> ir.Value:
        table = _address(builder, content)
        selected = ir.Constant(kind.llvm_type, ir.Undefined)
        for lane in range(kind.lanes):
            number = builder.zext(builder.extract_element(index, build.I32(lane)), _ADDRESS)
            at = builder.add(table, builder.shl(number, _ADDRESS(1)))
            word = builder.load(build.pointer(builder, at, element), align=2)
            selected = builder.insert_element(selected, word, build.I32(lane))
        return selected

    @operation
    def look_up(index: Any) -> Any:
        if index != kind:
            return None

        def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
            wide = target.current().vector_bytes == 64
            return (emit_permutations if wide else emit_loads)(builder, *args)

        return kind(kind), emit

    return look_up
