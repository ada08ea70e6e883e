"""Kernels are compiled: Python emits one while LLVM optimises another, and further processes take a part.

Knows names of kernels, LLVM modules and the cache's folder; nothing of kernels in memory.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from graphml_cpu import kernel_cache, machine_code
from graphml_cpu.compile_workers import workers_for
from graphml_cpu.kernel_cache import Artifact, KernelRef
from graphml_cpu.llvm_modules import module_texts

_TURN_S = 2e-4


def compiled(refs: Iterable[KernelRef], folder: Path | None) -> Iterator[tuple[KernelRef, Artifact]]:
    """Compile kernels, a part of them in further processes where that pays."""
    left = deque(refs)
    with workers_for(left, folder) as workers:
        for compiled_kernel in compiled_in_turn(_taken(left), folder):
            yield compiled_kernel
            yield from _read_back(workers.done, left, folder)
        workers.wait()
        yield from _read_back(workers.done, left, folder)
    yield from compiled_in_turn(_taken(left), folder)


def _taken(left: deque[KernelRef]) -> Iterator[KernelRef]:
    """Kernels from the first on, while others may take the last."""
    with contextlib.suppress(IndexError):
        while True:
            yield left.popleft()


def _read_back(
    done: deque[KernelRef], left: deque[KernelRef], folder: Path | None
) -> Iterator[tuple[KernelRef, Artifact]]:
    """What other processes have compiled; what cannot be read goes back to those that are left."""
    for ref in _taken(done):
        artifact = kernel_cache.read(folder, ref) if folder else None
        if artifact is None:
            left.append(ref)
        else:
            yield ref, artifact


def compiled_in_turn(refs: Iterable[KernelRef], folder: Path | None) -> Iterator[tuple[KernelRef, Artifact]]:
    """Compile kernels in order: LLVM optimises one, in a thread of its own, while the next is emitted."""
    running: deque[tuple[KernelRef, Future[Artifact]]] = deque()
    with _short_turns(), ThreadPoolExecutor(1, "graphml-compile") as back_half:  # what was begun is kept
        for ref in refs:
            running.append((ref, back_half.submit(_back_half, ref, folder, *module_texts(ref))))
            while running and running[0][1].done():
                done, artifact = running.popleft()
                yield done, artifact.result()
        for done, artifact in running:
            yield done, artifact.result()


@contextlib.contextmanager
def _short_turns() -> Iterator[None]:
    """Within, Python's threads take shorter turns.

    The back half calls LLVM a hundred times for a kernel, and after each call waits for the turn of the front
    half to end, which is all Python: usually 5 ms.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(min(usual, _TURN_S))
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _back_half(
    ref: KernelRef,
    folder: Path | None,
    texts: Sequence[str],
    symbol: str,
    parameters: tuple[tuple[str, str], ...],
) -> Artifact:
    code, externals = machine_code.compile_texts(texts, ref.name)
    artifact = Artifact(symbol, parameters, externals, code)
    if folder:
        kernel_cache.write(folder, ref, artifact)
    return artifact
