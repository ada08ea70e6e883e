"""Kernels -> machine code: compiled once per machine, kept on disk, loaded without the front end.

Writing a kernel
----------------
A kernel is made by a factory, a function in a module of `graphml_cpu.kernels` (or of any package):

    from graphml_cpu.compiler import Address, Dim, Float, Int
    from graphml_cpu.simd import F32, WIDTH, load, store, splat   # imported only to compile
    def make_scale() -> Kernel:
        def scale(ith: Int, nth: Int, x: Address, out: Address, n: Int, factor: Float, rows: Dim) -> None:
            for row in range(ith, rows, nth):
                for i in range(0, n, WIDTH): ...
        return scale

and named by a value that needs neither the module nor the front end:

    KernelRef("scale", module="graphml_cpu.kernels.elementwise.scale", factory="make_scale", arguments=())

`arguments` (strings, numbers, booleans, None) specialise it: the factory is called as `factory(*arguments)`.
The first two parameters are always `ith: Int` and `nth: Int`, the number of this thread and of all threads.
Each further parameter is an 8-byte slot of the call's parameter block, in order; its annotation says how
the slot is read:

    Address      the slot is an address; the kernel gets it as an int64
    Int          the slot is an int64
    Float        the slot's first four bytes are a float32
    Dim          the slot is the address of an int64 that is read at each call (the step's tokens)
    RunAddress   the slot is the address of an int64 that holds the address (state that a session rebinds)
    Code         the slot is the address of another kernel, which `graphml_cpu.simd.call_kernel` calls; the
                 kernel's `calls` say which one. What many kernels have in common is so compiled once.

A kernel returns nothing, raises nothing, allocates nothing and uses no arrays: addresses, numbers, vectors
(`graphml_cpu.simd`). Division follows NumPy (by zero: inf), nothing is contracted or reordered, NaN and
infinity survive. Helper functions carry `graphml_cpu.frontend.inline`, which names the language. `x * 0.5` is
float64 for a float32 x, so write `x * f32(0.5)` (`f32` from `graphml_cpu.simd`); a vector times 0.5 keeps its
own type.
All threads run the same call at once with their own `ith`: split the work, write disjoint memory.

Using a kernel
--------------
    kernel = compile_kernels([ref])["scale"]
    block = kernel.block(x=address, out=address, n=64, factor=0.5, rows=address_of_rows)
    kernel(block, ith=0, nth=1)      # in tests; the block is an int64 array, to be kept while it is in use
`kernel.address` is a C function `void entry(int64 block_address, int64 ith, int64 nth)`: what a tape holds.

The cache
---------
`<cache folder>/kernels/<hash>/<kernel>.kernel`, where the hash covers `kernel_cache.KERNEL_SOURCES`, the
versions of llvmlite and Python, and the level. A file carries its parameters, so that a warm process
imports neither the front end nor the kernel's module. Damaged files, and those of another kernel, are
compiled anew; an unwritable folder costs the caching only, and so does one that somebody else can write.

A kernel of another package is imported, front end and all: its file is named by a hash of its function, of
all that this calls and reads, and of the text of their files (`graphml.ir.function_hash`).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from graphml.errors import BackendError
from graphml_cpu import kernel_cache, machine_code, target
from graphml_cpu.kernel_cache import Artifact, KernelRef
from graphml_cpu.kernel_compilation import compiled
from graphml_cpu.llvm_modules import module_texts

__all__ = [
    "Address",
    "Code",
    "Dim",
    "Float",
    "Int",
    "KernelRef",
    "LoadedKernel",
    "RunAddress",
    "assembly",
    "compile_kernels",
]

Address = Annotated[int, "address"]
Int = Annotated[int, "int"]
Float = Annotated[float, "float"]
Dim = Annotated[int, "dim"]
RunAddress = Annotated[int, "run_address"]
Code = Annotated[int, "code"]


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel in memory: `address` of its entry, `slots` as (name, kind) in their order.

    code: the addresses of the kernels that it calls, by the names of its slots for them; 0 for none.
    """

    name: str
    address: int
    slots: tuple[tuple[str, str], ...]
    code: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """The slots that a caller fills: all but those of the kernels that it calls."""
        return tuple((name, kind) for name, kind in self.slots if kind != "code")

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Where in a parameter block each slot is."""
        return {name: slot for slot, (name, _) in enumerate(self.slots)}

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.parameters)

    def block(self, **values: float) -> NDArray[np.int64]:
        """The parameter block of one call, a value per parameter. Keep the array while it is in use.

        Raises `BackendError` for a missing or unknown name.
        """
        names = self._names
        if names != values.keys():
            missing, unknown = sorted(names - set(values)), sorted(set(values) - names)
            raise BackendError(f"kernel {self.name}: parameters missing {missing}, unknown {unknown}")
        block = np.zeros(max(len(self.slots), 1), np.int64)
        for slot, (name, kind) in enumerate(self.slots):
            if kind == "float":
                block[slot : slot + 1].view(np.float32)[0] = values[name]
            else:
                block[slot] = self.code[name] if kind == "code" else values[name]
        return block

    def __call__(self, block: NDArray[np.int64], ith: int = 0, nth: int = 1) -> None:
        """Run it here and now on one thread's share; for tests and measurements."""
        _entry_type(self.address)(block.ctypes.data, ith, nth)


_entry_type = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_lock = threading.RLock()
_loaded: dict[tuple[KernelRef, str], LoadedKernel] = {}
"""By kernel and what it was made of: a module of another package may be reloaded in this process."""


def compile_kernels(
    refs: Iterable[KernelRef], progress: Callable[[int, int], None] | None = None
) -> dict[str, LoadedKernel]:
    """Every kernel of `refs` by name, from the cache or compiled; `progress(done, total)` after each compile.

    Raises `BackendError` for two different kernels of one name, a kernel that does not compile, and code that
    calls a function outside itself, such as one of the C library.
    """
    wanted: dict[str, KernelRef] = {}
    for ref in refs:
        if wanted.setdefault(ref.name, ref) != ref:
            raise BackendError(f"two kernels are called {ref.name}: {wanted[ref.name]} and {ref}")
    with _lock:
        stems = {ref: kernel_cache.file_stem(ref) for ref in _with_called(wanted.values())}
        new = [ref for ref, stem in stems.items() if (ref, stem) not in _loaded]
        folder = kernel_cache.usable_folder() if new else None
        once = {stems[ref]: ref for ref in new}  # of several names, or that call others
        artifacts = {stem: kernel_cache.read(folder, ref) if folder else None for stem, ref in once.items()}
        missing = [once[stem] for stem, artifact in artifacts.items() if artifact is None]
        for done, (ref, artifact) in enumerate(compiled(missing, folder) if missing else (), 1):
            artifacts[stems[ref]] = artifact
            if progress is not None:
                progress(done, len(missing))
        for ref in new:
            loaded = artifacts[stems[ref]]
            if loaded is not None:
                address = machine_code.load(loaded.code, loaded.symbol, loaded.externals)
                code = _code(ref, loaded.parameters, stems)
                _loaded[ref, stems[ref]] = LoadedKernel(ref.name, address, loaded.parameters, code)
        return {name: _loaded[ref, stems[ref]] for name, ref in wanted.items()}


def _with_called(refs: Iterable[KernelRef]) -> list[KernelRef]:
    """Kernels, each behind those that it calls, once."""
    all_refs: dict[KernelRef, None] = {}
    for ref in refs:
        all_refs.update(dict.fromkeys(_with_called(called for _, called in ref.calls if called is not None)))
        all_refs[ref] = None
    return list(all_refs)


def _code(ref: KernelRef, slots: Iterable[tuple[str, str]], stems: Mapping[KernelRef, str]) -> dict[str, int]:
    """The addresses of what a kernel calls, which is loaded."""
    names, calls = {name for name, kind in slots if kind == "code"}, dict(ref.calls)
    if names != set(calls):
        raise BackendError(f"kernel {ref.name} calls {sorted(names)}; given are {sorted(calls)}")
    return {
        name: 0 if called is None else _loaded[called, stems[called]].address
        for name, called in calls.items()
    }


def assembly(ref: KernelRef) -> str:
    """The assembly text of a kernel, compiled for the level of this process; what can run here is kept."""
    with _lock:
        texts, symbol, parameters = module_texts(ref)
        if target.missing_features(target.current().name):
            return machine_code.list_texts(texts, ref.name)
        code, externals, listing = machine_code.compile_and_list(texts, ref.name)
        if folder := kernel_cache.usable_folder():
            kernel_cache.write(folder, ref, Artifact(symbol, parameters, externals, code))
        return listing
