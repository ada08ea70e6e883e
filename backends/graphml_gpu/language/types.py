"""Types of the kernel language: scalars, small vectors, buffers and arrays. Knows no target language.

A type checker sees `f32` as float and `u32` as int, so that kernels type-check as the Python that they are;
the language itself tells i32 from u32 and f16 from f32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar


@dataclass(frozen=True, eq=False)
class ValueType:
    """A scalar or a vector. kind: "f32", "f16", "i32", "u32" or "bool". lanes: 1, 2 or 4.

    There is one value for each kind and number of lanes, as types are compared for each part of a kernel.
    """

    kind: str
    lanes: int = 1

    def __new__(cls, kind: str, lanes: int = 1) -> ValueType:
        """The value that there is."""
        return _MADE.setdefault((kind, lanes), super().__new__(cls))

    @cached_property
    def name(self) -> str:
        """As kernels spell it: f32, u32x4."""
        return self.kind if self.lanes == 1 else f"{self.kind}x{self.lanes}"

    @cached_property
    def scalar(self) -> ValueType:
        """The type of one lane."""
        return ValueType(self.kind)

    @cached_property
    def is_float(self) -> bool:
        """f32 or f16, scalar or vector."""
        return self.kind in ("f32", "f16")

    @cached_property
    def is_integer(self) -> bool:
        """i32 or u32, scalar or vector."""
        return self.kind in ("i32", "u32")

    @property
    def n_bytes(self) -> int:
        """Bytes of a value in a buffer."""
        return self.lanes * (2 if self.kind == "f16" else 4)


_MADE: dict[tuple[str, int], ValueType] = {}


@dataclass(frozen=True)
class BufferType:
    """What an annotation such as `Read[f32]` means. access: "read", "write" or "update"."""

    access: str
    element: ValueType


@dataclass(frozen=True)
class ArrayType:
    """What the annotation `Array[f32]` of a `@function` means: a shared or private array, or any buffer."""

    element: ValueType


BOOL = ValueType("bool")
F32, F16, I32, U32 = ValueType("f32"), ValueType("f16"), ValueType("i32"), ValueType("u32")
"""The same values as `f32`, `f16`, `i32` and `u32`, for code about types; kernels use the small names."""

SCALARS = {"f32": F32, "i32": I32, "u32": U32}
"""What a kernel's scalar arguments may be: words of four bytes."""

if TYPE_CHECKING:
    Lane = TypeVar("Lane", bound=float)
    Element = TypeVar("Element")
    Loaded = TypeVar("Loaded", covariant=True)
    Stored = TypeVar("Stored", contravariant=True)

    class Vector(Generic[Lane]):
        """Two or four lanes; x, y, z, w are the lanes by name."""

        x: Lane
        y: Lane
        z: Lane
        w: Lane

        def __init__(self, *lanes: Lane | Vector[Any]) -> None: ...
        def __getitem__(self, lane: int) -> Lane: ...
        def __add__(self, other: Vector[Lane] | Lane) -> Vector[Lane]: ...
        def __radd__(self, other: Lane) -> Vector[Lane]: ...
        def __sub__(self, other: Vector[Lane] | Lane) -> Vector[Lane]: ...
        def __rsub__(self, other: Lane) -> Vector[Lane]: ...
        def __mul__(self, other: Vector[Lane] | Lane) -> Vector[Lane]: ...
        def __rmul__(self, other: Lane) -> Vector[Lane]: ...
        def __truediv__(self, other: Vector[Lane] | Lane) -> Vector[Lane]: ...
        def __floordiv__(self, other: Vector[Lane] | Lane) -> Vector[Lane]: ...
        def __mod__(self, other: Vector[Lane] | Lane) -> Vector[Lane]: ...
        def __and__(self, other: Vector[Lane] | Lane) -> Vector[Lane]: ...
        def __or__(self, other: Vector[Lane] | Lane) -> Vector[Lane]: ...
        def __xor__(self, other: Vector[Lane] | Lane) -> Vector[Lane]: ...
        def __lshift__(self, other: Vector[Lane] | Lane) -> Vector[Lane]: ...
        def __rshift__(self, other: Vector[Lane] | Lane) -> Vector[Lane]: ...
        def __neg__(self) -> Vector[Lane]: ...
        def __invert__(self) -> Vector[Lane]: ...

    class Read(Protocol[Loaded]):
        """A buffer that a kernel reads."""

        def __getitem__(self, index: int) -> Loaded: ...

    class Write(Protocol[Stored]):
        """A buffer that a kernel writes."""

        def __setitem__(self, index: int, value: Stored) -> None: ...

    class Update(Protocol[Element]):
        """A buffer that a kernel reads and writes."""

        def __getitem__(self, index: int) -> Element: ...
        def __setitem__(self, index: int, value: Element) -> None: ...

    class Array(Protocol[Element]):
        """A shared or private array, or a buffer, given to a `@function`."""

        def __getitem__(self, index: int) -> Element: ...
        def __setitem__(self, index: int, value: Element) -> None: ...

    f32 = float
    f16 = float
    i32 = int
    u32 = int
    f32x2 = Vector[float]
    f32x4 = Vector[float]
    f16x2 = Vector[float]
    f16x4 = Vector[float]
    i32x2 = Vector[int]
    i32x4 = Vector[int]
    u32x2 = Vector[int]
    u32x4 = Vector[int]
else:

    class _Access:
        """`Read`, `Write` or `Update`: with an element type in brackets, a `BufferType`."""

        def __init__(self, access: str) -> None:
            self.access = access

        def __getitem__(self, element: ValueType) -> BufferType:
            return BufferType(self.access, element)

    class Array:
        """With an element type in brackets, an `ArrayType`."""

        def __class_getitem__(cls, element: ValueType) -> ArrayType:
            return ArrayType(element)

    class Vector:
        """For annotations of what a function returns; in brackets the type of a lane."""

        def __class_getitem__(cls, lane: ValueType) -> None:
            return None

    Read, Write, Update = _Access("read"), _Access("write"), _Access("update")
    f32, f16, i32, u32 = F32, F16, I32, U32
    f32x2, f32x4, f16x2, f16x4 = (
        ValueType("f32", 2),
        ValueType("f32", 4),
        ValueType("f16", 2),
        ValueType("f16", 4),
    )
    i32x2, i32x4, u32x2, u32x4 = (
        ValueType("i32", 2),
        ValueType("i32", 4),
        ValueType("u32", 2),
        ValueType("u32", 4),
    )
