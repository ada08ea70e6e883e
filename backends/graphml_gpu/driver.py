"""What a GPU library has to do for the runtime: memory, kernels, lists of dispatches run again and again.

All that differs between wgpu and OpenCL is behind `Driver`. Knows neither of them, and nothing of graphs,
nodes or models. Every failure is a `BackendError`, raised by the call that failed or, where the device
reports it late, by the next `read` or `wait`; after it the process can open the device again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from graphml.backend import Progress, no_progress
from graphml.errors import BackendError
from graphml_gpu.language import Features, Specialised

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Groups = tuple[int, int, int]
Kind = Literal["cpu", "integrated", "discrete", "other"]
MOST_BINDING_BYTES = (1 << 32) - 256
"""Kernels count a binding's bytes in 32 bits: drivers report no larger ones, whatever the device allows."""


@dataclass(frozen=True)
class Facts:
    """What a device is and can do.

    driver: name and version. backend: the package that drives it. memory_bytes: the device's memory,
    None where the library does not report it. max_group: invocations of a workgroup; max_group_sizes: in
    each of its three dimensions. max_groups: workgroups of a dispatch in each dimension. shared_bytes:
    of a workgroup. offset_alignment: what the offset of a bound range is a multiple of, scalars
    included. unified_memory: the device's memory is the host's. overlaps: bindings of a dispatch may
    overlap where one of them is written; WebGPU forbids it. loop_turns: turns of all loops of an invocation
    together, nested ones and those after each other, behind which the driver ends every loop; None: no limit.
    keeps_negated: see `Features`.
    """

    name: str
    vendor: str
    driver: str
    backend: Literal["wgpu", "opencl"]
    kind: Kind
    memory_bytes: int | None
    max_buffer_bytes: int
    max_binding_bytes: int
    max_bindings: int
    max_group: int
    max_group_sizes: Groups
    max_groups: int
    shared_bytes: int
    offset_alignment: int
    subgroup_min: int = 1
    subgroup_max: int = 1
    has_subgroups: bool = False
    has_f16: bool = False
    has_dot4: bool = False
    has_timestamps: bool = False
    unified_memory: bool = False
    overlaps: bool = False
    loop_turns: int | None = None
    keeps_negated: bool = True

    def features(self) -> Features:
        """What kernels for this device may use."""
        return Features(
            subgroups=self.has_subgroups,
            subgroup_min=self.subgroup_min,
            subgroup_max=self.subgroup_max,
            f16=self.has_f16,
            dot4=self.has_dot4,
            keeps_negated=self.keeps_negated,
        )


class Buffer(Protocol):
    """Memory of a device, zeroed."""

    @property
    def n_bytes(self) -> int:
        """Its size, as asked for."""

    @property
    def label(self) -> str:
        """What it holds, for errors and debuggers."""

    def release(self) -> None:
        """Give the memory back; recordings that use it can no longer be submitted."""


Range = tuple[Buffer, int, int]
"""Buffer, byte offset, number of bytes."""


@dataclass(frozen=True, eq=False)
class Bound:
    """A kernel with its arguments.

    buffers: what each buffer argument is, in the kernel's order; the offsets are multiples of
    `Facts.offset_alignment`, the sizes of 4. scalars: where `Specialised.words` lie, in a
    buffer of which no kernel writes any part; the offset is aligned too.
    """

    kernel: Specialised
    buffers: tuple[Range, ...]
    scalars: Range


class DispatchRecording(Protocol):
    """Dispatches that are ready to be submitted, many times."""

    def __len__(self) -> int:
        """Number of dispatches."""


class Driver(Protocol):
    """A device that is open. Used from one thread at a time.

    What is written, copied, cleared and submitted happens in that order. Only `read`, `wait` and
    `times` wait.
    """

    @property
    def facts(self) -> Facts:
        """What the device is and can do."""

    @property
    def allocated_bytes(self) -> int:
        """Of all buffers that are not given back."""

    def buffer(self, n_bytes: int, label: str) -> Buffer:
        """Memory, zeroed. `BackendError` with the sizes if it is more than the device has or allows."""

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        """Copy an array (C-contiguous) or bytes to a buffer; offset and size are multiples of 4."""

    def read(self, ranges: Sequence[Range]) -> list[Bytes]:
        """Copies of some ranges, after all that was submitted; offsets and sizes are multiples of 4."""

    def later(self, ranges: Sequence[Range]) -> Callable[[], list[Bytes]]:
        """As `read`, but what is given waits, and only for what was submitted before this call.

        What is submitted in between may write to the ranges. Who does not want them any more need not ask.
        """

    def copy(
        self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, n_bytes: int
    ) -> None:
        """Copy on the device, ranges that do not overlap; offsets and size are multiples of 4."""

    def clear(self, buffer: Buffer, offset: int, n_bytes: int) -> None:
        """Set bytes to zero; multiples of 4."""

    def record(self, dispatches: Sequence[Bound], progress: Progress = no_progress) -> DispatchRecording:
        """Compile the kernels (each text once for the driver's life) and bind their arguments.

        `BackendError` with the numbered source and the compiler's words if one cannot be compiled.
        progress is called with "record".
        """

    def submit(
        self,
        recording: DispatchRecording,
        groups: Sequence[Groups],
        timed: bool = False,
        copies: Sequence[tuple[Range, Range]] = (),
        reads: Sequence[Range] = (),
    ) -> Callable[[], list[Bytes]]:
        """Run the dispatches in order, each with its number of workgroups; those with a 0 are left out.

        copies: made before the dispatches, from the first range to the second, which is in another buffer.
        reads: ranges as the dispatches leave them, which the result waits for; see `later`.
        timed: `times` can be asked afterwards; costs what the device's timestamps cost.
        """

    def times(self) -> list[tuple[int, int]]:
        """Begin and end of each dispatch of the last timed submit in ns, waiting for it.

        The clock is the device's own, of which only differences mean anything. A dispatch left out has
        no length.
        """

    def wait(self) -> None:
        """Return when all that was submitted is done."""

    def close(self) -> None:
        """Give everything back."""


def writable(bound: Bound) -> frozenset[str]:
    """Names of a kernel's buffer arguments that share a buffer with one that it writes.

    WebGPU knows one usage of a buffer per dispatch: an argument that is only read is bound as one that is
    written where another range of its buffer is written (the arena: nearly always).
    """
    arguments = list(zip(bound.kernel.buffers, bound.buffers, strict=True))
    written = {id(buffer) for argument, (buffer, _, _) in arguments if argument.writes}
    return frozenset(argument.name for argument, (buffer, _, _) in arguments if id(buffer) in written)


def overlapping(bound: Bound) -> tuple[str, str] | None:
    """Names of two bindings that overlap, in a buffer of which the kernel writes some part; None: none do.

    WebGPU refuses such a dispatch: all ranges of that buffer are bound as written, see `writable`.
    """
    shared = writable(bound)
    bindings = [
        (buffer.name, where)
        for buffer, where in zip(bound.kernel.buffers, bound.buffers, strict=True)
        if buffer.name in shared
    ]
    for (first, a), (second, b) in itertools.combinations(bindings, 2):
        if a[0] is b[0] and a[1] < b[1] + b[2] and b[1] < a[1] + a[2]:
            return first, second
    return None


def compile_error(kernel: Specialised, text: str, message: str) -> BackendError:
    """The error that a kernel's text could not be compiled: the compiler's words and the numbered text."""
    numbered = "\n".join(f"{i:4} {line}" for i, line in enumerate(text.splitlines(), 1))
    return BackendError(f"kernel {kernel.title}: cannot be compiled: {message.strip()}\n{numbered}")
