"""Numba types whose values are LLVM vectors, one register (or several) each.

Knows numba's type and data-model registries; knows no operation on the vectors.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.typing.typeof import typeof_impl
from numba.extending import lower_cast, register_model

# Element name -> (LLVM type, is a float, is signed). "i1" is the element of masks.
ELEMENTS: dict[str, tuple[ir.Type, bool, bool]] = {
    "i1": (ir.IntType(1), False, False),
    "i8": (ir.IntType(8), False, True),
    "u8": (ir.IntType(8), False, False),
    "i16": (ir.IntType(16), False, True),
    "u16": (ir.IntType(16), False, False),
    "i32": (ir.IntType(32), False, True),
    "u32": (ir.IntType(32), False, False),
    "i64": (ir.IntType(64), False, True),
    "u64": (ir.IntType(64), False, False),
    "f16": (ir.HalfType(), True, True),
    "f32": (ir.FloatType(), True, True),
    "f64": (ir.DoubleType(), True, True),
}
_ELEMENT_BITS = {"f16": 16, "f32": 32, "f64": 64}


class VectorType(types.Type):
    """`lanes` elements of one kind, for example `VectorType("f32", 16)`."""

    def __init__(self, element: str, lanes: int) -> None:
        if element not in ELEMENTS:
            raise ValueError(f"unknown vector element {element!r}; wanted one of {', '.join(ELEMENTS)}")
        self.element = element
        self.lanes = lanes
        super().__init__(name=f"{element}x{lanes}")

    @property
    def key(self) -> tuple[str, int]:
        """What makes two vector types the same."""
        return (self.element, self.lanes)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return ELEMENTS[self.element][1]

    @property
    def is_signed(self) -> bool:
        """Whether integer elements are signed (floats say yes)."""
        return ELEMENTS[self.element][2]

    @property
    def bits(self) -> int:
        """Bits of one element."""
        llvm_type = self.llvm_element
        return llvm_type.width if isinstance(llvm_type, ir.IntType) else _ELEMENT_BITS[self.element]

    @property
    def llvm_element(self) -> ir.Type:
        """The LLVM type of one element."""
        return ELEMENTS[self.element][0]

    @property
    def llvm_type(self) -> ir.VectorType:
        """The LLVM type of the whole vector."""
        return ir.VectorType(self.llvm_element, self.lanes)

    def like(self, element: str) -> VectorType:
        """As many lanes of another element."""
        return VectorType(element, self.lanes)

    @property
    def numba_element(self) -> Any:
        """The numba scalar that holds one element (f16 has none of its own: float32)."""
        return getattr(types, {"i1": "boolean", "f16": "float32"}.get(self.element, _long_name(self.element)))


def _long_name(element: str) -> str:
    return {"i": "int", "u": "uint", "f": "float"}[element[0]] + element[1:]


def vector(element: str, lanes: int) -> VectorType:
    """The vector type of `lanes` elements `"i8" "u8" "i16" "u16" "i32" "u32" "i64" "f16" "f32" "f64"`.

    In a kernel the type itself is a compile-time argument: `load(F32, address)`.
    """
    return VectorType(element, lanes)


@register_model(VectorType)
class VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    """An LLVM vector, passed and kept as it is."""

    def __init__(self, dmm: Any, fe_type: VectorType) -> None:
        super().__init__(dmm, fe_type, fe_type.llvm_type)


def _typeof_vector_type(value: VectorType, context: Any) -> types.TypeRef:
    return types.TypeRef(value)


typeof_impl.register(VectorType)(_typeof_vector_type)


def splat_value(builder: ir.IRBuilder, value: ir.Value, vector_type: VectorType) -> ir.Value:
    """IR for a vector with `value` in every lane."""
    one = builder.insert_element(ir.Constant(vector_type.llvm_type, ir.Undefined), value, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector_type.lanes), [0] * vector_type.lanes)
    return builder.shuffle_vector(one, ir.Constant(vector_type.llvm_type, ir.Undefined), zeros)


def _scalar_to_vector(
    context: Any, builder: ir.IRBuilder, fromty: Any, toty: VectorType, value: ir.Value
) -> ir.Value:
    scalar = context.cast(builder, value, fromty, toty.numba_element)
    if toty.element == "i1":
        scalar = builder.trunc(scalar, ir.IntType(1)) if scalar.type != ir.IntType(1) else scalar
    if toty.element == "f16":
        scalar = builder.fptrunc(scalar, ir.HalfType())
    return splat_value(builder, scalar, toty)


for _scalar in (types.Integer, types.Float, types.IntegerLiteral, types.Boolean):
    lower_cast(_scalar, VectorType)(_scalar_to_vector)
