"""Encoders of weight formats as the framework calls them: kernels of `kernels.encoders` on a team of threads.

Knows kernels, tapes and arrays; no format.
"""

from __future__ import annotations

import functools
import os
import threading
from dataclasses import dataclass

import graphml_quant
import numpy as np

from graphml.ir.op import Array
from graphml_cpu import target
from graphml_cpu.compiler import KernelRef, LoadedKernel, compile_kernels
from graphml_cpu.kernels.encoders import ELEMENTS, ROW_MEANS, names
from graphml_cpu.layouts import encoder_lanes, encoder_scratch
from graphml_cpu.runtime.shares import PARTS
from graphml_cpu.runtime.tape import Tape, TapeStep
from graphml_cpu.runtime.workers import Team

# Elements that are encoded before Python looks up again, for Ctrl-C.
_RUN_ELEMENTS = 1 << 24
_ROW_MEANS = KernelRef("row_means", "graphml_cpu.kernels.encoders.blocks", "make_row_means")
_lock = threading.Lock()


def encoder(format: str) -> CpuEncoder | None:
    """See `graphml.backend.Backend`."""
    return CpuEncoder(format) if format in (*names(), *ELEMENTS) else None


@functools.lru_cache(4)
def _team(threads: int | None, process: int) -> Team:
    """One for all encoders; another for a process that was forked, where its threads are not."""
    return Team(threads)


@dataclass(frozen=True)
class CpuEncoder:
    """See `graphml.backend.WeightEncoder`."""

    format: str

    def __call__(self, values: Array, importance: Array | None, out: Array, threads: int | None) -> bool:
        """See `graphml.backend.WeightEncoder`."""
        with _lock:
            team = _team(threads, os.getpid())
        flaw, (rows, columns) = np.zeros(1, np.int32), values.shape
        step = max(1, _RUN_ELEMENTS // max(columns, 1))
        for first in range(0, rows, step):
            part = slice(first, first + step)
            self._run(team, values[part], importance, out[part], flaw)
            if flaw[0]:
                return False
        return True

    def _run(self, team: Team, values: Array, importance: Array | None, out: Array, flaw: Array) -> None:
        layout, (rows, columns) = graphml_quant.by_name(self.format), values.shape
        row_blocks = columns // layout.block_elements
        if not rows * row_blocks:
            return
        if self.format in ELEMENTS:
            self._run_elements(team, values, out)
            return
        weighted = importance is not None
        kernel = self._kernel(weighted)
        lanes = encoder_lanes(target.current().f32_lanes)
        memory = encoder_scratch(layout.block_elements, layout.block_bytes, lanes).n_bytes
        # Contents of no thread share a cache line; the pages come as they are touched.
        scratch = np.empty((team.n_threads, -(-memory // 128) * 128), np.uint8)
        means = np.empty(rows if weighted and self.format in ROW_MEANS else 0, np.float32)
        shared = {
            "x": values.ctypes.data, "out": out.ctypes.data, "means": means.ctypes.data,
            "importance": 0 if importance is None else importance.ctypes.data, "flaw": flaw.ctypes.data,
            "blocks": rows * row_blocks, "row_blocks": row_blocks,
        }  # fmt: skip
        blocks = [kernel.block(**shared, scratch=own.ctypes.data) for own in scratch]
        steps = [_step(kernel, blocks)]
        if len(means):
            mean_kernel = compile_kernels([_ROW_MEANS])[_ROW_MEANS.name]
            rows_of = {"x": values.ctypes.data, "means": means.ctypes.data, "n": columns, "rows": rows}
            mean_blocks = [mean_kernel.block(**rows_of, scratch=own.ctypes.data) for own in scratch]
            steps.insert(0, _step(mean_kernel, mean_blocks))
        team.run(Tape(steps, team.n_threads))

    def _run_elements(self, team: Team, values: Array, out: Array) -> None:
        name = f"encode.{self.format}"
        module = "graphml_cpu.kernels.encoders.elements"
        ref = KernelRef(name, module, "make_encode_elements", (self.format,))
        kernel = compile_kernels([ref])[name]
        block = kernel.block(x=values.ctypes.data, out=out.ctypes.data, n=values.size)
        team.run(Tape([_step(kernel, [block])], team.n_threads))

    def _kernel(self, weighted: bool) -> LoadedKernel:
        name = f"encode.{self.format}{'.weighted' if weighted else ''}"
        module = "graphml_cpu.kernels.encoders.blocks"
        ref = KernelRef(name, module, "make_encode_blocks", (self.format, weighted))
        return compile_kernels([ref])[name]


def _step(kernel: LoadedKernel, blocks: list[Array]) -> TapeStep:
    addresses = tuple(int(block.ctypes.data) for block in blocks)
    return TapeStep(kernel.address, addresses, parts=PARTS, name=kernel.name)
