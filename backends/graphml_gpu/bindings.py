"""Which arguments of a kernel share a binding: those in place, and some where a device binds too few.

Values are in one arena and inputs in one block: two of the same elements, or words, can be one binding, in
which each begins at its own element. WebGPU refuses bindings that overlap where one of them is written, as a
result planned in place and the operand that it takes over do. Knows kernels and places; nothing of the order
of dispatches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphml.errors import BackendError
from graphml_gpu.dispatch import Argument, Dispatch, Zeros
from graphml_gpu.driver import Facts, Range
from graphml_gpu.language import Specialised, ValueType
from graphml_gpu.language.types import U32
from graphml_gpu.places import GpuPlaces
from graphml_gpu.state import GpuState


@dataclass(frozen=True)
class ArgumentSpan:
    """The place of an argument: bytes of some memory, alike for those that may share a binding."""

    memory: Any
    begin: int = 0
    end: int = 0


def _overlap(a: ArgumentSpan, b: ArgumentSpan) -> bool:
    return a.memory == b.memory and a.begin < b.end and b.begin < a.end


Binding = tuple[str, ...]
"""The arguments that share one, in the kernel's order."""


class _Bindings:
    """The arguments of a kernel, put together in bindings."""

    def __init__(self, kernel: Specialised, span: Callable[[str], ArgumentSpan | None]) -> None:
        self._arguments = {buffer.name: buffer for buffer in kernel.buffers}
        self._spans = {name: span(name) for name in self._arguments}
        written = (self._spans[buffer.name] for buffer in kernel.buffers if buffer.writes)
        self._written = {where.memory for where in written if where is not None}
        self.alone: list[Binding] = [(name,) for name in self._arguments]

    def apart(self, bindings: Iterable[Binding]) -> list[Binding]:
        """Put together what overlaps, and what overlaps with that, until nothing does."""
        joined = list(bindings)
        spans = [(span, binding) for binding in joined if (span := self._span(binding)) is not None]
        spans = [(span, binding) for span, binding in spans if span.memory in self._written]
        for (a, first), (b, second) in itertools.combinations(spans, 2):
            if _overlap(a, b):
                return self.apart(self._joined(joined, first, second))
        return joined

    def fewer(self, bindings: Sequence[Binding]) -> list[Binding] | None:
        """Fewer bindings, by as few as can be, where some may share one; None: none may."""
        classes: dict[Any, list[Binding]] = {}
        for binding in bindings:
            where, argument = self._spans[binding[0]], self._arguments[binding[0]]
            if where is not None and not argument.atomic and argument.element.kind != "f16":
                classes.setdefault((where.memory, argument.element), []).append(binding)
        largest_first = sorted(classes.values(), key=lambda some: -sum(map(len, some)))
        pairs = (pair for alike in largest_first for pair in itertools.combinations(alike, 2))
        joined = (self.apart(self._joined(bindings, a, b)) for a, b in pairs)
        return max(
            (candidate for candidate in joined if self.mixed(candidate) is None), key=len, default=None
        )

    def mixed(self, bindings: Iterable[Binding], vectors: bool = False) -> Binding | None:
        """A binding of elements that are not bound as one type; None: there is none.

        vectors: those of words may be beside words, where nothing writes what they read.
        """
        for binding in bindings:
            words = [name for name in binding if not (vectors and self._is_read_by_words(name))]
            kinds, of_words = ({self._held_as(name) for name in names} for names in (binding, words))
            if len(kinds) > 1 and len(of_words) != 1:
                return binding
        return None

    def _is_read_by_words(self, name: str) -> bool:
        argument, span = self._arguments[name], self._spans[name]
        written = [self._spans[other.name] for other in self._arguments.values() if other.writes]
        return (
            (
                argument.element.lanes > 1
                and argument.element.kind != "f16"
                and not (argument.writes or argument.atomic)
            )
            and span is not None
            and not any(other is not None and _overlap(span, other) for other in written)
        )

    def narrowest(self, binding: Binding) -> str:
        """The argument as which a binding is declared: the first of those with the fewest lanes."""
        return min(binding, key=lambda name: self._arguments[name].element.lanes)

    def _held_as(self, name: str) -> tuple[ValueType, bool]:
        """What an argument's elements are bound as: words may be numbers of any type."""
        argument = self._arguments[name]
        word = argument.element.lanes == 1 and argument.element.n_bytes == 4 and not argument.atomic
        return U32 if word else argument.element, argument.atomic

    def _joined(self, bindings: Iterable[Binding], a: Binding, b: Binding) -> list[Binding]:
        joined = tuple(name for name in self._arguments if name in {*a, *b})
        return [joined if binding == a else binding for binding in bindings if binding != b]

    def _span(self, binding: Binding) -> ArgumentSpan | None:
        if len(binding) == 1:
            return self._spans[binding[0]]
        spans = [where for where in map(self._spans.__getitem__, binding) if where is not None]
        if not spans:
            return None
        return ArgumentSpan(
            spans[0].memory, min(place.begin for place in spans), max(place.end for place in spans)
        )


def shared(
    kernel: Specialised, span: Callable[[str], ArgumentSpan | None], most: int, overlaps: bool = False
) -> Specialised:
    """The kernel with at most so many bindings, if that can be, and none that overlap unless they may.

    span: the place of an argument; None for one that shares no binding. No more share one than have to.
    """
    if overlaps and len(kernel.buffers) <= most:
        return kernel
    arguments = _Bindings(kernel, span)
    bindings = arguments.alone if overlaps else arguments.apart(arguments.alone)
    mixed = arguments.mixed(bindings, vectors=True)
    if mixed is not None:
        raise BackendError(
            f"kernel {kernel.name}: {', '.join(mixed)} overlap and one of them is written: wanted elements of"
            " one type, or words, which can be one binding"
        )
    while len(bindings) > most:
        fewer = arguments.fewer(bindings)
        if fewer is None:
            break
        bindings = fewer
    declared = {binding: arguments.narrowest(binding) for binding in bindings}
    return kernel.sharing(
        {name: argument for names, argument in declared.items() for name in names if name != argument}
    )


def _span(argument: Argument, places: GpuPlaces) -> ArgumentSpan | None:
    """The place of an argument among what kernels write; a state is one piece, wherever it is."""
    state = places.state_of(argument)
    if state is not None:
        return ArgumentSpan(state, 0, 1)
    if isinstance(argument, Zeros):
        return ArgumentSpan(argument, 0, argument.n_bytes)
    memory = places.memory_of(argument)
    if memory is None:
        return None
    _, begin, size = places.range(argument, None)
    return ArgumentSpan(memory, begin, begin + size)


def bindable(kernel: Specialised, dispatch: Dispatch, places: GpuPlaces, facts: Facts) -> Specialised:
    """The kernel as a device binds it; `BackendError` where it cannot."""
    bound = shared(
        kernel, lambda name: _span(dispatch.buffers[name], places), facts.max_bindings, facts.overlaps
    )
    if len(bound.buffers) > facts.max_bindings:
        raise BackendError(
            f"kernel {kernel.name}: {len(bound.buffers)} buffers; {facts.name} binds {facts.max_bindings}"
        )
    for first in dict.fromkeys(bound.shares.values()):
        names = (first, *(name for name, other in bound.shares.items() if other == first))
        places_of = [places.range(dispatch.buffers[name], None) for name in names]
        widest = max(start + size for _, start, size in places_of) - min(start for _, start, _ in places_of)
        if widest > facts.max_binding_bytes:
            raise BackendError(
                f"kernel {kernel.name}: {', '.join(names)} share a binding of {widest} bytes, and one of"
                f" {facts.name} holds {facts.max_binding_bytes}: give a smaller n_batch"
            )
    return bound


def ranges(
    kernel: Specialised, dispatch: Dispatch, places: GpuPlaces, state: GpuState | None
) -> tuple[Range, ...]:
    """What each of the kernel's bindings holds: from the first of its values to the end of the last."""
    spans = {array.name: places.range(dispatch.buffers[array.name], state) for array in kernel.buffers}
    for name, other in kernel.shares.items():
        buffer, start, size = places.range(dispatch.buffers[name], state)
        _, first, n_bytes = spans[other]
        begin = min(start, first)
        spans[other] = buffer, begin, max(start + size, first + n_bytes) - begin
    return tuple(spans.values())


def begins(kernel: Specialised, dispatch: Dispatch, places: GpuPlaces) -> Mapping[str, int]:
    """The hidden scalars: at which element of its binding each argument begins."""
    if not kernel.shares:
        return {f"{array.name}_at": 0 for array in kernel.tree.buffers}
    first = dict(
        zip((buffer.name for buffer in kernel.buffers), ranges(kernel, dispatch, places, None), strict=True)
    )
    offsets = {}
    for array in kernel.tree.buffers:
        _, binding, _ = first[kernel.shares.get(array.name, array.name)]
        _, start, _ = places.range(dispatch.buffers[array.name], None)
        offsets[f"{array.name}_at"] = (start - binding) // array.element.n_bytes
    return offsets
