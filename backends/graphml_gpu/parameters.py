"""The numbers of all dispatches of a program: one uniform buffer, written again only where dims have changed.

Knows words and dims; nothing of graphs or of what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphml.errors import BackendError
from graphml.ir.op import Array
from graphml_gpu.dispatch import Count, Dims, Grid, Groups, Scalar
from graphml_gpu.driver import Buffer, Range
from graphml_gpu.memory import Memory

_KEPT = 16  # sets of dims whose numbers are kept: prompts have a last batch of any length


@dataclass(frozen=True)
class Largest:
    """How far the values of an integer input go: above the largest of a step, a power of two of at least 64.

    So coarse, it seldom changes from step to step: positions in a context do so when it has doubled.
    """

    name: str

    @property
    def key(self) -> str:
        """What it is called among a step's dims."""
        return f"largest {self.name}"

    def __call__(self, dims: Dims) -> int:
        """Its value in a step."""
        return dims[self.key]

    def of(self, values: Array) -> int:
        """Its value for those of a step."""
        return 1 << max(6, int(values.max(initial=0)).bit_length())


@dataclass(frozen=True)
class DispatchNumbers:
    """What one dispatch is given: (name, type) of each word in order, values by name, and its grid.

    turns: see `Dispatch`.
    """

    kernel: str
    words: Sequence[tuple[str, str]]
    values: Mapping[str, Scalar]
    grid: Grid
    turns: int | Callable[[Dims], int] = 0


@dataclass(frozen=True)
class _StepNumbers:
    """All numbers for some dims. grids: the groups of each dispatch."""

    block: np.ndarray[Any, np.dtype[np.uint32]]
    grids: tuple[Groups, ...]


class Parameters:
    """The words of every dispatch at aligned offsets of one buffer, and the grids, for the dims of a step."""

    def __init__(self, memory: Memory, dispatches: Sequence[DispatchNumbers]) -> None:
        self._memory = memory
        widest = max((len(dispatch.words) for dispatch in dispatches), default=1)
        alignment = max(256, memory.driver.facts.offset_alignment)
        self._stride = max(-(-widest * 4 // alignment), 1) * alignment
        self._fixed = np.zeros((max(len(dispatches), 1), self._stride // 4), np.uint32)
        self._changing: list[tuple[int, int, str, Callable[[Dims], int | float]]] = []
        self._grids = [dispatch.grid for dispatch in dispatches]
        self._turns = [
            (dispatch.kernel, dispatch.turns) for dispatch in dispatches if callable(dispatch.turns)
        ]
        self._n_words = [len(dispatch.words) for dispatch in dispatches]
        for row, dispatch in enumerate(dispatches):
            self._fill(row, dispatch)
        self.buffer: Buffer = memory.buffer(self, self._fixed.nbytes, "parameters")
        self._steps: dict[tuple[tuple[str, int], ...], _StepNumbers] = {}
        self._written: _StepNumbers | None = None

    def _fill(self, row: int, dispatch: DispatchNumbers) -> None:
        names = [name for name, _ in dispatch.words]
        if set(names) != set(dispatch.values):
            missing, unknown = (
                sorted(set(names) - set(dispatch.values)),
                sorted(set(dispatch.values) - set(names)),
            )
            raise BackendError(f"kernel {dispatch.kernel}: scalars missing {missing}, unknown {unknown}")
        for column, (name, kind) in enumerate(dispatch.words):
            value = dispatch.values[name]
            if isinstance(value, Count) and value.fixed:
                value = value.factor
            if callable(value):
                self._changing.append((row, column, kind, value))
            else:
                self._fixed[row, column] = word(kind, value)

    def range(self, row: int) -> Range:
        """Where the words of a dispatch lie."""
        return self.buffer, row * self._stride, max(-(-self._n_words[row] * 4 // 16), 1) * 16

    def prepare(self, dims: Dims) -> Sequence[Groups]:
        """Have the numbers for these dims on the device; gives the grids of all dispatches."""
        key = tuple(dims.items())
        step = self._steps.get(key)
        if step is None:
            while len(self._steps) >= _KEPT:
                self._steps.pop(next(iter(self._steps)))
            step = self._steps[key] = self._worked_out(dims)
        if step is not self._written:
            self._written = None  # not known if this is interrupted
            self._memory.driver.write(self.buffer, 0, step.block.reshape(-1).view(np.uint8))
            self._written = step
        return step.grids

    def _check_turns(self, dims: Dims) -> None:
        """`BackendError` for a step in which the device would end a kernel's loops too early."""
        facts = self._memory.driver.facts
        for kernel, turns in self._turns if facts.loop_turns else []:
            if turns(dims) > (facts.loop_turns or 0):
                raise BackendError(
                    f"kernel {kernel}: {turns(dims)} turns of loops in this step, and {facts.name} ends loops"
                    f" after {facts.loop_turns}: give it a shorter context"
                )

    def _worked_out(self, dims: Dims) -> _StepNumbers:
        self._check_turns(dims)
        block = self._fixed.copy()
        for row, column, kind, value in self._changing:
            block[row, column] = word(kind, value(dims))
        return _StepNumbers(block, tuple(grid(dims) if callable(grid) else grid for grid in self._grids))


def word(kind: str, value: int | float) -> int:
    """A number as the four bytes that a kernel reads; kind: "f32", "i32" or "u32"."""
    if kind == "f32":
        return int(np.float32(value).view(np.uint32))
    if int(value) != value or not -(1 << 31) <= value < (1 << 32):
        raise BackendError(f"wanted a whole number of 32 bits for a scalar of type {kind}; got {value!r}")
    return int(value) & 0xFFFFFFFF
