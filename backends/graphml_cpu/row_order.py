"""Compiled loops over rows of logits, for samplers on the host: the order of a row.

The kernels run on the caller's thread, without the interpreter's lock. Knows kernels and arrays; no sampler.
"""

from __future__ import annotations

import ctypes
import functools
import threading

import numpy as np
from numpy.typing import NDArray

from graphml_cpu.compiler import KernelRef, LoadedKernel, compile_kernels
from graphml_cpu.layouts import SORT_COUNTS_BYTES

_entry_type = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_MODULE = "graphml_cpu.kernels.indexing.descending"
_DESCENDING = KernelRef("descending", _MODULE, "make_descending")
_PREFIX = KernelRef("prefix", _MODULE, "make_prefix")
_scratch = threading.local()  # of each thread: memory that is new each time is cleared by the system first


@functools.cache
def _kernel(ref: KernelRef) -> LoadedKernel:
    return compile_kernels([ref])[ref.name]


def _run(ref: KernelRef, **values: float) -> None:
    kernel = _kernel(ref)
    block = kernel.block(**values)
    _entry_type(kernel.address)(block.ctypes.data, 0, 1)


def _words(count: int) -> NDArray[np.int64]:
    """So many words behind the counters of the sort, kept for this thread's next row."""
    wanted = count + SORT_COUNTS_BYTES // 8
    if len(getattr(_scratch, "words", ())) < wanted:
        _scratch.words = np.empty(wanted, np.int64)
    words: NDArray[np.int64] = _scratch.words
    return words


def descending(scores: NDArray[np.float32]) -> NDArray[np.int64]:
    """The positions of scores, float32 [n] without NaN, highest first, equal ones by position."""
    contiguous, n = np.ascontiguousarray(scores, np.float32), len(scores)
    out, counts = np.empty(n, np.int64), _words(n).ctypes.data
    _run(
        _DESCENDING,
        x=contiguous.ctypes.data,
        out=out.ctypes.data,
        other=counts + SORT_COUNTS_BYTES,
        counts=counts,
        n=n,
    )
    return out


def prefix(
    scores: NDArray[np.float32], shares: NDArray[np.float32], mass: float, least: int, beyond: bool
) -> NDArray[np.int64]:
    """The first of `descending`, as many as have shares, float32 [n], that together reach the mass.

    At least `least`, all where the mass is never reached. The shares are added in float32, one after the
    other; beyond: their sum has to exceed the mass. Valid until this thread's next call.
    """
    contiguous, own, n = np.ascontiguousarray(scores), np.ascontiguousarray(shares), len(scores)
    words = _words(2 * n + 1)
    counts = words.ctypes.data
    other, out, count = (counts + SORT_COUNTS_BYTES + 8 * at for at in (0, n, 2 * n))
    _run(
        _PREFIX, x=contiguous.ctypes.data, share=own.ctypes.data, out=out, other=other, counts=counts,
        count=count, n=n, mass=float(np.float32(mass)), beyond=int(beyond),
    )  # fmt: skip
    first = SORT_COUNTS_BYTES // 8 + n
    needed = max(int(words[first + n]), least)
    return words[first : first + min(needed, n)]
