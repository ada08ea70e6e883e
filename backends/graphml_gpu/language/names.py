"""The names that kernels use, typed for a type checker. What they mean is in `calls` and `intrinsics`.

None can be called from ordinary Python: a kernel is read, never run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, overload

from graphml_gpu.language import types


@dataclass(frozen=True)
class Builtin:
    """A function of the language."""

    name: str

    def __call__(self, *arguments: object, **keywords: object) -> NoReturn:
        """Refuse: the name means something in a kernel only."""
        raise TypeError(f"{self.name}() is a function of the kernel language, for use in a kernel only")


def _builtin(name: str) -> Any:
    return Builtin(name)


Number = TypeVar("Number")
Element = TypeVar("Element")


class One(Protocol):
    """f(x) of x's type."""

    def __call__(self, x: Number, /) -> Number:
        """The value of a call."""


class Two(Protocol):
    """f(x, y) of their type."""

    def __call__(self, x: Number, y: Number, /) -> Number:
        """The value of a call."""


class Three(Protocol):
    """f(x, y, z) of their type."""

    def __call__(self, x: Number, y: Number, z: Number, /) -> Number:
        """The value of a call."""


class SelectFunction(Protocol):
    """select(condition, yes, no)."""

    def __call__(self, condition: bool, yes: Number, no: Number, /) -> Number:
        """The value of a call."""


class Bits(Protocol):
    """bitcast(type, x)."""

    def __call__(self, kind: Callable[..., Number], x: Any, /) -> Number:
        """The value of a call."""


class TypeOf(Protocol):
    """type_of(x): its type."""

    def __call__(self, x: Number, /) -> Callable[..., Number]:
        """The value of a call."""


class ArrayOf(Protocol):
    """shared_array(f32, n), private_array(f32, n)."""

    def __call__(self, element: Callable[..., Element], n: int, /) -> types.Array[Element]:
        """The value of a call."""


class TableOf(Protocol):
    """table(u32, values): a constant array, in a kernel."""

    def __call__(self, element: Callable[..., Element], values: Iterable[float], /) -> types.Array[Element]:
        """The value of a call."""


class Unroll(Protocol):
    """unroll(n), unroll(begin, end, step) or unroll(constants)."""

    @overload
    def __call__(self, end: int, /) -> Iterable[int]: ...
    @overload
    def __call__(self, begin: int, end: int, step: int = 1, /) -> Iterable[int]: ...
    @overload
    def __call__(self, values: Iterable[Element], /) -> Iterable[Element]: ...


class ElementAtomic(Protocol):
    """atomic_add(buffer, index, value): what the element held before."""

    def __call__(self, buffer: types.Array[int], index: int, value: int, /) -> int:
        """The value of a call."""


if TYPE_CHECKING:
    Dimension = Callable[[int], int]
    Count = Callable[[], int]

exp: One = _builtin("exp")
exp2: One = _builtin("exp2")
log: One = _builtin("log")
log2: One = _builtin("log2")
sin: One = _builtin("sin")
cos: One = _builtin("cos")
sqrt: One = _builtin("sqrt")
inverse_sqrt: One = _builtin("inverse_sqrt")
floor: One = _builtin("floor")
ceil: One = _builtin("ceil")
trunc: One = _builtin("trunc")
round: One = _builtin("round")
count_bits: One = _builtin("count_bits")
pow: Two = _builtin("pow")
fma: Three = _builtin("fma")
clamp: Three = _builtin("clamp")
select: SelectFunction = _builtin("select")
bitcast: Bits = _builtin("bitcast")
dot: Callable[[types.Vector[float], types.Vector[float]], float] = _builtin("dot")
isnan: Callable[[float], bool] = _builtin("isnan")
isinf: Callable[[float], bool] = _builtin("isinf")
unpack_half2: Callable[[int], types.Vector[float]] = _builtin("unpack_half2")
pack_half2: Callable[[types.Vector[float]], int] = _builtin("pack_half2")

group_id: Dimension = _builtin("group_id")
local_id: Dimension = _builtin("local_id")
global_id: Dimension = _builtin("global_id")
num_groups: Dimension = _builtin("num_groups")
local_index: Count = _builtin("local_index")
"""The invocation's number in its workgroup, of `group_size()`."""
group_size: Count = _builtin("group_size")
"""Invocations of a workgroup; known when compiling."""
subgroup_count: Count = _builtin("subgroup_count")
"""Subgroups of the workgroup; without the feature each invocation is one."""
subgroup_lane: Count = _builtin("subgroup_lane")
subgroup_id: Count = _builtin("subgroup_id")
"""The subgroup's number in its workgroup."""
subgroup_size_min: Count = _builtin("subgroup_size_min")
"""The smallest subgroup of the device; known when compiling."""
subgroup_size_max: Count = _builtin("subgroup_size_max")

subgroup_sum: One = _builtin("subgroup_sum")
subgroup_max: One = _builtin("subgroup_max")
subgroup_xor: Callable[[Any, int], Any] = _builtin("subgroup_xor")
"""The value that the invocation has whose lane differs in the bits given."""
subgroup_broadcast: Callable[[Any, int], Any] = _builtin("subgroup_broadcast")
"""The value of one lane, known when compiling."""

has_subgroups: Callable[[], bool] = _builtin("has_subgroups")
has_f16: Callable[[], bool] = _builtin("has_f16")
has_dot4: Callable[[], bool] = _builtin("has_dot4")

shared_array: ArrayOf = _builtin("shared_array")
private_array: ArrayOf = _builtin("private_array")
table: TableOf = _builtin("table")
barrier: Callable[[], None] = _builtin("barrier")
uniform: One = _builtin("uniform")
"""The value, which all invocations of the workgroup have alike, where a barrier depends on it."""
atomic_add: ElementAtomic = _builtin("atomic_add")
atomic_max: ElementAtomic = _builtin("atomic_max")
atomic_min: ElementAtomic = _builtin("atomic_min")
atomic_or: ElementAtomic = _builtin("atomic_or")
unroll: Unroll = _builtin("unroll")
"""unroll(n), unroll(begin, end, step) or unroll(constants): the body is written once for each value."""
type_of: TypeOf = _builtin("type_of")
debug_print: Callable[..., None] = _builtin("debug_print")
"""Shown by the emulator; a device prints nothing."""
packed_dot4: Callable[[int, int, int], int] = _builtin("dot4_i8")
"""The device's own instruction: see `dot4_i8`."""
