"""The top k of many rows of logits on a team's threads, for samplers on the host.

Knows one kernel and its tape; no sampler.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphml.ir.op import Array
from graphml_cpu.compiler import KernelRef, compile_kernels
from graphml_cpu.layouts import ROW_BLOCK
from graphml_cpu.runtime.shares import PARTS
from graphml_cpu.runtime.tape import Tape, TapeStep
from graphml_cpu.runtime.workers import Team

_ROW_TOPS = KernelRef("row_tops", "graphml_cpu.kernels.indexing.row_tops", "make_row_tops")


class RowTops:
    """One kernel call at a time, with memory that grows with the rows."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._kernel = compile_kernels([_ROW_TOPS])[_ROW_TOPS.name]
        self._names = [name for name, _ in self._kernel.slots]
        self._block = np.zeros(len(self._names), np.int64)
        step = TapeStep(self._kernel.address, (self._block.ctypes.data,), parts=PARTS)
        self._tape = Tape([step], team.n_threads)
        self._maxima = np.zeros(0, np.float32)
        self._bits = np.zeros((0, 0), np.uint8)

    def of(self, rows: Array, k: int, masks: Mapping[int, Array] | None = None) -> tuple[Array, Array, Array]:
        """See `graphml.backend.TopRowsDevice`."""
        n_rows, n = rows.shape
        if rows.strides[1] != 4 or rows.dtype != np.float32:
            rows = np.ascontiguousarray(rows, np.float32)
        if len(self._maxima) < n_rows * (n // ROW_BLOCK) + 1:
            self._maxima = np.zeros(n_rows * (n // ROW_BLOCK) + 1, np.float32)
        ids, tops = np.empty((n_rows, k), np.int32), np.empty((n_rows, k), np.float32)
        flaws = np.empty(n_rows, np.int32)
        addresses = self._addresses_of(masks or {}, n_rows, n)
        values = {
            "x": rows.ctypes.data, "masks": addresses.ctypes.data, "maxima": self._maxima.ctypes.data,
            "ids": ids.ctypes.data, "tops": tops.ctypes.data, "flaws": flaws.ctypes.data, "n": n, "k": k,
            "x_stride": rows.strides[0], "rows": n_rows,
        }  # fmt: skip
        self._block[:] = [values[name] for name in self._names]
        self._team.run(self._tape)
        return ids, tops, flaws != 0

    def _addresses_of(self, masks: Mapping[int, Array], n_rows: int, n: int) -> Array:
        """Each row's address of its mask as whole int32, with no bits past its end, or 0."""
        n_bytes = -(-n // 32) * 4
        if len(self._bits) < len(masks) or self._bits.shape[1] != n_bytes:
            self._bits = np.zeros((len(masks), n_bytes), np.uint8)
        addresses, first = np.zeros(n_rows, np.int64), self._bits.ctypes.data
        for i, (row, bits) in enumerate(masks.items()):
            self._bits[i, : len(bits)] = bits[:n_bytes]
            self._bits[i, len(bits) :] = 0
            addresses[row] = first + i * n_bytes
        return addresses
