"""How the threads of one call share its work, and names for types found at each call; knows no kernel."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline

# A vector, or a number computed by the operations of `graphml_cpu.simd`: which one is found at each call.
Vector = Any
Number = Any


@inline
def share(ith: int, nth: int, total: int) -> tuple[int, int]:
    """The part [begin, end) of `total` units for thread `ith` of `nth`; parts differ by one unit at most."""
    return total * ith // nth, total * (ith + 1) // nth
