"""References to kernels over arrays: a plain function, and the types of its arguments.

Knows neither graphs nor numba.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BEGIN, END, ROWS = "begin", "end", "rows"
Constant = int | float | bool | str | tuple[int, ...] | tuple[float, ...]


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
    constants: tuple[tuple[str, Constant], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def calls(self) -> tuple[()]:
        """It calls no other kernel of a tape."""
        return ()

    @property
    def slots(self) -> tuple[tuple[str, str], ...]:
        """Its parameter block: of each array the address and the dimensions, the rows, the numbers."""
        found: list[tuple[str, str]] = []
        for array in self.arrays:
            found.append((array.name, "run_address" if array.moves else "address"))
            found += [(dim_slot(array.name, i), "dim") for i in range(array.n_dims)]
        return (*found, (ROWS, "dim"), *((name, "float") for name in self.numbers))


def dim_slot(array: str, i: int) -> str:
    """The name of the slot of an array's dimension."""
    return f"{array}.{i}"
