"""References to kernels over arrays: a plain function, and the types of its arguments.

Knows neither graphs nor numba.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from graphml.ir.op import Attribute

BEGIN, END = "begin", "end"
ROWS, RAISED = "#rows", "#raised"  # no names of arguments


@dataclass(frozen=True)
class ArraySlot:
    """An array argument: its name, its NumPy dtype, how many dimensions it has.

    moves: its address is a session's, read at each call.
    """

    name: str
    dtype: str
    n_dims: int
    moves: bool = False


@dataclass(frozen=True)
class ArrayKernelRef:
    """Which kernel over arrays, compiled for which arguments.

    name: as lists of kernels show it. arrays: in the order of the function's parameters, before `begin` and
    `end`. numbers: attributes that are float32 at run time. constants: attributes that are compiled in.
    options: numba's own, such as `fastmath`.
    """

    name: str
    function: Callable[..., Any]
    arrays: tuple[ArraySlot, ...]
    numbers: tuple[str, ...] = ()
    constants: tuple[tuple[str, Attribute], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    _shown: str = field(init=False, repr=False)  # 0.0, -0.0, 0 and False are equal, and compile to others

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shown", repr((self.constants, self.options)))

    @property
    def calls(self) -> tuple[()]:
        """It calls no other kernel of a tape."""
        return ()

    @property
    def slots(self) -> tuple[tuple[str, str], ...]:
        """Its parameter block: of each array the address and the dimensions, the rows, the numbers, a word.

        The word: where the kernel writes the address of its block when it has raised an exception.
        """
        slots: list[tuple[str, str]] = []
        for array in self.arrays:
            slots.append((array.name, "run_address" if array.moves else "address"))
            slots += [(dim_slot(array.name, i), "dim") for i in range(array.n_dims)]
        return (*slots, (ROWS, "dim"), *((name, "float") for name in self.numbers), (RAISED, "raised"))


def dim_slot(array: str, i: int) -> str:
    """The name of the slot of an array's dimension."""
    return f"{array}.{i}"
