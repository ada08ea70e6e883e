"""What products cost by rows and by panels, and up to how many rows of activations the first is cheaper.

A model with two numbers for each form: what reading a weight costs whatever the number of rows, and what a
row costs for each weight, both in picoseconds of one thread, as `benchmarks/rows.py --forms --cached`
measured them. What is multiplied past the last row of weights or of activations counts, too. `graphml tune`
measures a shape itself. Knows no kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from graphml_cpu import target
from graphml_cpu.layouts import FEW_ROWS, PANEL_ROWS


@dataclass(frozen=True)
class Cost:
    """Picoseconds for each weight: `read` once, `row` for each row; both counted in whole tiles."""

    read: float
    row: float
    weight_rows: int
    tokens: int

    def of(self, n: int, rows: int) -> float:
        """Picoseconds of a product for each of its columns."""
        weights = -(-n // self.weight_rows) * self.weight_rows
        return weights * (self.read + -(-rows // self.tokens) * self.tokens * self.row)


@dataclass(frozen=True)
class Costs:
    """Of the two forms."""

    by_rows: Cost
    by_panels: Cost


def _costs(by_rows: tuple[float, float], by_panels: tuple[float, float], integer: bool) -> Costs:
    rows, tokens = (8, 4) if integer else (4, 8)
    return Costs(Cost(*by_rows, rows, 1), Cost(*by_panels, PANEL_ROWS, tokens))


# Processors that execute 64 bytes as two halves: Zen 4 (AMD EPYC, 3.6 GHz, 23 November 2026).
# F32 is measured with weights from memory: no cache holds them.
_HALVES = ("znver4",)
_ZEN_4 = {
    "integer": _costs((17.0, 6.7), (40.0, 6.1), True),
    "f16": _costs((0.0, 18.7), (170.0, 17.6), False),
    "bf16_pairs": _costs((0.0, 10.9), (72.0, 10.2), False),
    "bf16": _costs((0.0, 33.0), (234.0, 27.5), False),
    "f32": _costs((0.0, 24.0), (250.0, 17.5), False),
}
# Others: an Intel Xeon with AVX-512 VNNI, 22 November 2026, from the table of docs/cpu.md.
_OTHERS = {
    "integer": _costs((35.0, 6.0), (68.0, 5.2), True),
    "float": _costs((0.0, 27.4), (203.0, 12.5), False),
}
# 32 bytes: the Zen 4 at the level avx2.
_HALF_VECTORS = {
    "integer": _costs((62.0, 11.7), (72.0, 12.0), True),
    "float": _costs((0.0, 27.4), (203.0, 12.5), False),
}


@cache  # LLVM looks again each time
def _host_cpu() -> str:
    return str(llvm.get_host_cpu_name())


def costs(kind: str, is_float: bool) -> Costs:
    """What products with weights of a kind cost on this processor at the process's level."""
    if target.current().vector_bytes < 64:
        table = _HALF_VECTORS
    else:
        table = _ZEN_4 if _host_cpu() in _HALVES else _OTHERS
    return table.get(kind) or table.get("float" if is_float else "integer") or table["integer"]


def cheapest_rows(kind: str, is_float: bool, n: int) -> int:
    """Up to how many rows of activations n rows of weights are cheaper by rows.

    At most FEW_ROWS, for which scratch memory is planned; of float weights, which need none, twice as many.
    """
    return _cheapest_rows(costs(kind, is_float), 2 * FEW_ROWS if is_float else FEW_ROWS, n)


@cache  # a model has few shapes
def _cheapest_rows(of: Costs, most: int, n: int) -> int:
    by_rows = (rows for rows in range(most, 1, -1) if of.by_rows.of(n, rows) <= of.by_panels.of(n, rows))
    return next(by_rows, 1)
