"""Q5_1: blocks of 32, a scale and a minimum, levels of 5 bits."""

from __future__ import annotations

from typing import Any

from graphml_cpu.kernels.encoders._nibbles import make_nibble_blocks

HALVES = (0, 2)


def make_encode(weighted: bool) -> Any:
    """See the package."""
    return make_nibble_blocks(weighted, has_minimum=True, has_fifth=True)
