"""How many invocations a workgroup has, where it takes a row or each of them an element."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from graphml_gpu.dispatch import Along, Argument, Count, DeviceView, Dispatch, Grid, Scalar, along
from graphml_gpu.language import Kernel
from graphml_gpu.tuning import is_processor

NO_CONSTANTS: Mapping[str, Any] = MappingProxyType({})
_SMALLEST, _LARGEST = 32, 256
_EACH = 4
"""Elements of a row that an invocation takes at least, before more of them take part."""
_PER_ELEMENT = 128
_STEP = 32
"""Workgroups of rows in registers are multiples of it, as subgroups are."""
_MOST_QUADS = 8
"""Quads of a row that an invocation holds at most: with a weight's and a bias's 96 registers."""


def for_row(n: int) -> dict[str, Any]:
    """The constant GROUP for a workgroup a row of n elements."""
    wanted = -(-n // _EACH)
    return {"GROUP": min(max(1 << (wanted - 1).bit_length(), _SMALLEST), _LARGEST)}


WIDEST = 4 * _MOST_QUADS * _LARGEST
"""Elements of a row that registers hold, in workgroups of the usual size."""


def in_registers(n: int, context: DeviceView) -> dict[str, Any]:
    """The constants GROUP and EACH for a row of n elements in registers."""
    quads, most = -(-n // 4), min(_LARGEST, context.facts.max_group)
    each = -(-quads // most)
    return {"GROUP": min(-(-quads // each // _STEP) * _STEP, most), "EACH": each}


def held(n: int, context: DeviceView) -> dict[str, Any] | None:
    """The same; None where a row is read again instead: of an odd number, a long one, and on processors."""
    if n % 4 or n > WIDEST or is_processor(context.facts):
        return None
    return in_registers(n, context)


def for_elements(count: Count) -> tuple[dict[str, Any], Along]:
    """The constant GROUP and the grid for an invocation an element."""
    size = min(for_row(count.bound)["GROUP"], _PER_ELEMENT)
    return {"GROUP": size}, along(count, size)


def per_element(
    kernel: Kernel, count: Count, constants: Mapping[str, Any] = NO_CONSTANTS, label: str = "", /,
    **arguments: Argument | Scalar,
) -> list[Dispatch]:  # fmt: skip
    """The dispatch of a kernel with an invocation an element; arguments: its buffers and its scalars."""
    size, grid = for_elements(count)
    return [on_grid(kernel, {**size, **constants}, grid, label, **arguments)]


def per_row(
    kernel: Kernel, count: Count, width: int, constants: Mapping[str, Any] = NO_CONSTANTS, label: str = "", /,
    **arguments: Argument | Scalar,
) -> list[Dispatch]:  # fmt: skip
    """The dispatch of a kernel with a workgroup a row of so many elements; arguments as of `per_element`."""
    return [on_grid(kernel, {**for_row(width), **constants}, along(count), label, **arguments)]


def on_grid(
    kernel: Kernel, constants: Mapping[str, Any], grid: Grid, label: str = "", /,
    **arguments: Argument | Scalar,
) -> Dispatch:  # fmt: skip
    """The dispatch of a kernel on a grid; arguments: its buffers and its scalars."""
    buffers = {name: value for name, value in arguments.items() if isinstance(value, Argument)}
    scalars = {name: value for name, value in arguments.items() if not isinstance(value, Argument)}
    return Dispatch(kernel, constants, buffers, scalars, grid, label)
