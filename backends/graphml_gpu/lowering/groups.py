"""How many invocations a workgroup has, where it takes a row or each of them an element."""

from __future__ import annotations

from typing import Any

from graphml_gpu.dispatch import Along, Count, along

_SMALLEST, _LARGEST = 32, 256
_EACH = 4
"""Elements of a row that an invocation takes at least, before more of them take part."""
_PER_ELEMENT = 128


def for_row(n: int) -> dict[str, Any]:
    """The constant GROUP for a workgroup a row of n elements."""
    wanted = -(-n // _EACH)
    return {"GROUP": min(max(1 << (wanted - 1).bit_length(), _SMALLEST), _LARGEST)}


def for_elements(count: Count) -> tuple[dict[str, Any], Along]:
    """The constant GROUP and the grid for an invocation an element."""
    size = min(for_row(count.bound)["GROUP"], _PER_ELEMENT)
    return {"GROUP": size}, along(count, size)
