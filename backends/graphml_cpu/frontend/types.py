"""Types of values in kernels: numbers, booleans, tuples and LLVM vectors. Each type is one object.

`int64(float32, F32)` is the signature of an operation: what it returns, and what it takes. Knows LLVM's
types, and no operation on values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import llvmlite.ir as ir


class LlvmType:
    """A type; two of the same class and key are the same object, so they are compared by identity."""

    _made: ClassVar[dict[Any, Any]] = {}
    llvm_type: ir.Type

    def __new__(cls, *key: Any) -> Any:
        """The type of this class and key."""
        interned = LlvmType._made.get((cls, key))
        if interned is None:
            interned = LlvmType._made[cls, key] = super().__new__(cls)
        return interned

    def __call__(self, *arguments: LlvmType) -> Signature:
        """The signature that returns this type."""
        return Signature(self, arguments)

    def __repr__(self) -> str:
        return str(getattr(self, "name", type(self).__name__))


@dataclass(frozen=True)
class Signature:
    """What an operation returns and the types of its arguments."""

    return_type: Any
    args: tuple[Any, ...]


class Integer(LlvmType):
    """A whole number of `bits` bits."""

    def __init__(self, bits: int, signed: bool) -> None:
        self.bits, self.signed = bits, signed
        self.name = f"{'' if signed else 'u'}int{bits}"
        self.llvm_type = ir.IntType(bits)


class Float(LlvmType):
    """A floating-point number of 32 or 64 bits."""

    def __init__(self, bits: int) -> None:
        self.bits, self.name = bits, f"float{bits}"
        self.llvm_type = ir.FloatType() if bits == 32 else ir.DoubleType()


class Boolean(LlvmType):
    """Whether something is so: one bit."""

    name = "boolean"
    llvm_type = ir.IntType(1)


class NoneType(LlvmType):
    """What a function returns that returns nothing."""

    name = "none"


class BaseTuple(LlvmType):
    """Several values, of which each has its own type."""

    def __init__(self, kinds: tuple[LlvmType, ...]) -> None:
        self.kinds = kinds
        self.name = f"({', '.join(map(repr, kinds))})"

    def __len__(self) -> int:
        return len(self.kinds)


class Tuple(BaseTuple):
    """Values of several types."""


class UniTuple(BaseTuple):
    """`count` values of one type."""

    def __init__(self, dtype: LlvmType, count: int) -> None:
        super().__init__((dtype,) * count)
        self.dtype = dtype


def tuple_of(kinds: Iterable[LlvmType]) -> BaseTuple:
    """The type of a tuple of such values."""
    elements = tuple(kinds)
    same = bool(elements) and all(kind is elements[0] for kind in elements)
    return UniTuple(elements[0], len(elements)) if same else Tuple(elements)


class TypeRef(LlvmType):
    """A type that is itself an argument: `load(F32, address)`."""

    def __init__(self, instance_type: LlvmType) -> None:
        self.instance_type = instance_type
        self.name = f"type {instance_type!r}"


none = NoneType()
boolean = Boolean()
int8, int16, int32, int64 = (Integer(bits, True) for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (Integer(bits, False) for bits in (8, 16, 32, 64))
float32, float64 = Float(32), Float(64)

# Element name -> (LLVM type, the number that holds one, is signed). "i1" is the element of masks.
ELEMENTS: dict[str, tuple[ir.Type, Any, bool]] = {
    "i1": (ir.IntType(1), boolean, False),
    "i8": (ir.IntType(8), int8, True),
    "u8": (ir.IntType(8), uint8, False),
    "i16": (ir.IntType(16), int16, True),
    "u16": (ir.IntType(16), uint16, False),
    "i32": (ir.IntType(32), int32, True),
    "u32": (ir.IntType(32), uint32, False),
    "i64": (ir.IntType(64), int64, True),
    "u64": (ir.IntType(64), uint64, False),
    "f16": (ir.HalfType(), float32, True),
    "f32": (ir.FloatType(), float32, True),
    "f64": (ir.DoubleType(), float64, True),
}


class VectorType(LlvmType):
    """`lanes` elements of one kind in an LLVM vector, one register (or several): `VectorType("f32", 16)`.

    scalar: the number that holds one element (f16 has none of its own: float32). bits: those of one element.
    """

    def __init__(self, element: str, lanes: int) -> None:
        if element not in ELEMENTS:
            raise ValueError(f"unknown vector element {element!r}; wanted one of {', '.join(ELEMENTS)}")
        self.element, self.lanes = element, lanes
        self.name = f"{element}x{lanes}"
        self.llvm_element, self.scalar, self.is_signed = ELEMENTS[element]
        self.is_float = isinstance(self.scalar, Float)
        self.bits = int(element[1:])
        self.llvm_type = ir.VectorType(self.llvm_element, lanes)

    def like(self, element: str) -> VectorType:
        """As many lanes of another element."""
        return VectorType(element, self.lanes)
