"""The typed tree of a specialised kernel: what the renderers read. Knows neither Python's syntax nor targets.

Compile-time values, `if`s on them, unrolled loops and functions are gone: a tree has typed values only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from graphml_gpu.language.types import ValueType


@dataclass(eq=False)
class Variable:
    """A local value. mutable: given more than once. loop: of a `for`. unnamed: of no name in Python.

    never_negative: an i32 that is known to be 0 or more.
    """

    name: str
    type: ValueType
    mutable: bool = False
    loop: bool = False
    unnamed: bool = False
    never_negative: bool = False


@dataclass(eq=False)
class ArrayVariable:
    """What is read and written by index. space: "buffer", "shared", "private" or "table".

    length: elements (None for a buffer). access: a buffer's "read", "write" or "update". atomic: used by
    atomics. values: a table's.
    """

    name: str
    space: str
    element: ValueType
    length: int | None = None
    access: str = "update"
    atomic: bool = False
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class LiteralValue:
    """A constant of a type; vectors have one value for all lanes."""

    value: float
    type: ValueType


@dataclass(frozen=True)
class Name:
    """A variable's value."""

    variable: Variable

    @property
    def type(self) -> ValueType:
        """The variable's."""
        return self.variable.type


@dataclass(frozen=True)
class Scalar:
    """The value of a kernel's scalar argument."""

    name: str
    type: ValueType


@dataclass(frozen=True)
class Index:
    """Where an invocation is. which: group_id, local_id, global_id, num_groups, local_index, subgroup_..."""

    which: str
    dimension: int | None
    type: ValueType


@dataclass(frozen=True)
class Load:
    """An element of an array."""

    array: ArrayVariable
    index: Expression
    type: ValueType


@dataclass(frozen=True)
class Lane:
    """One lane of a vector."""

    value: Expression
    lane: int

    @property
    def type(self) -> ValueType:
        """That of a lane."""
        return self.value.type.scalar


@dataclass(frozen=True)
class Unary:
    """operator: "-", "~" or "not"."""

    operator: str
    value: Expression
    type: ValueType


@dataclass(frozen=True)
class Binary:
    """Operators as Python spells them, with `and` and `or`.

    "//" and "%" are the division of devices, which truncates towards 0: of operands that cannot be negative,
    or within what `division` makes of Python's.
    """

    operator: str
    left: Expression
    right: Expression
    type: ValueType


@dataclass(frozen=True)
class Select:
    """yes if condition else no, where both are cheap and safe to work out."""

    condition: Expression
    yes: Expression
    no: Expression

    @property
    def type(self) -> ValueType:
        """That of both."""
        return self.yes.type


@dataclass(frozen=True)
class Convert:
    """A value of another type; a scalar or as many values as a vector has lanes."""

    values: tuple[Expression, ...]
    type: ValueType


@dataclass(frozen=True)
class Call:
    """An intrinsic, by its name in the table of intrinsics."""

    name: str
    values: tuple[Expression, ...]
    type: ValueType


Expression = LiteralValue | Name | Scalar | Index | Load | Lane | Unary | Binary | Select | Convert | Call


@dataclass
class Assign:
    """Give a variable a value. declares: this is where it comes into being."""

    variable: Variable
    value: Expression
    declares: bool = False


@dataclass
class Declare:
    """A variable that is assigned in inner blocks."""

    variable: Variable


@dataclass
class SetLane:
    """Give one lane of a variable a value."""

    variable: Variable
    lane: int
    value: Expression


@dataclass
class Store:
    """Give an element of an array a value."""

    array: ArrayVariable
    index: Expression
    value: Expression


@dataclass
class Atomic:
    """Change an element of an array at once: operator "add", "max", "min", "or"; result: what it held."""

    operator: str
    array: ArrayVariable
    index: Expression
    value: Expression
    result: Variable | None
    declares: bool = False


@dataclass
class Across:
    """An operation across a subgroup ("sum", "max", "xor", "broadcast"); by: lane or lane mask."""

    operator: str
    value: Expression
    by: Expression | None
    result: Variable
    declares: bool = False


@dataclass
class Barrier:
    """All invocations of the group wait for each other; shared memory and buffers are seen by all.

    where: file and line, for the emulator's messages.
    """

    where: str


@dataclass
class Uniform:
    """result: a value that is the same for all invocations of the group; all must come here.

    held: WGSL's variable of the workgroup for values of its type. where: as for `Barrier`.
    """

    value: Expression
    held: str
    result: Variable
    where: str
    declares: bool = False


@dataclass
class If:
    """A decision at run time."""

    condition: Expression
    yes: list[Statement]
    no: list[Statement] = field(default_factory=list)


@dataclass
class For:
    """Count from begin to end (not reached) by step; down: the step is negative."""

    variable: Variable
    begin: Expression
    end: Expression
    step: Expression
    down: bool
    body: list[Statement]


@dataclass
class While:
    """Repeat while the condition holds; None: until `break`."""

    condition: Expression | None
    body: list[Statement]


@dataclass
class Leave:
    """`break`, `continue` or `return`."""

    how: str


@dataclass
class Print:
    """Values shown by the emulator alone."""

    values: tuple[Expression | str, ...]


SpecialStatement = Atomic | Across | Barrier | Uniform
"""Statements in which invocations meet, or change the same element."""
Statement = (
    Assign | Declare | SetLane | Store | Atomic | Across | Barrier | Uniform | If | For | While | Leave
    | Print
)  # fmt: skip


@dataclass(frozen=True)
class Tree:
    """A specialised kernel. scalars: (name, type) in order; group: the workgroup's size."""

    name: str
    buffers: tuple[ArrayVariable, ...]
    scalars: tuple[tuple[str, ValueType], ...]
    arrays: tuple[ArrayVariable, ...]
    tables: tuple[ArrayVariable, ...]
    group: tuple[int, int, int]
    body: list[Statement]
