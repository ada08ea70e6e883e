"""Which arguments of a kernel share a binding, where a kernel has more of them than a device binds.

Values lie in one arena and inputs in one block: two that are read as the same elements can be one binding, in
which each begins at its own element. Knows kernels and places; nothing of the order of dispatches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphml.errors import BackendError
from graphml_gpu.dispatch import Dispatch
from graphml_gpu.driver import Facts, Range
from graphml_gpu.language import Specialised
from graphml_gpu.places import Places
from graphml_gpu.state import GpuState


def shared(kernel: Specialised, memory: Callable[[str], Any], most: int) -> Specialised:
    """The kernel with at most so many bindings, if that can be; no fewer than needed.

    memory: argument -> what it lies in, alike for those that may share; None for one that stands alone.
    """
    spare = len(kernel.buffers) - most
    if spare <= 0:
        return kernel
    groups: dict[Any, list[str]] = {}
    for one in kernel.buffers:
        place = memory(one.name)
        if place is not None and not one.atomic and one.element.kind != "f16":
            groups.setdefault((place, one.element), []).append(one.name)
    pairs = [(names[0], other) for names in sorted(groups.values(), key=len) for other in names[1:]]
    return kernel.sharing({other: first for first, other in pairs[-spare:]}) if pairs else kernel


def bindable(kernel: Specialised, dispatch: Dispatch, places: Places, facts: Facts) -> Specialised:
    """The kernel as a device binds it; `BackendError` where it cannot."""
    made = shared(kernel, lambda name: places.memory_of(dispatch.buffers[name]), facts.max_bindings)
    if len(made.buffers) > facts.max_bindings:
        raise BackendError(
            f"kernel {kernel.name}: {len(made.buffers)} buffers; {facts.name} binds {facts.max_bindings}"
        )
    for first in dict.fromkeys(made.shares.values()):
        names = (first, *(name for name, other in made.shares.items() if other == first))
        places_of = [places.range(dispatch.buffers[name], None) for name in names]
        widest = max(start + size for _, start, size in places_of) - min(start for _, start, _ in places_of)
        if widest > facts.max_binding_bytes:
            raise BackendError(
                f"kernel {kernel.name}: {', '.join(names)} share a binding of {widest} bytes, and one of"
                f" {facts.name} holds {facts.max_binding_bytes}: give a smaller n_batch"
            )
    return made


def ranges(
    kernel: Specialised, dispatch: Dispatch, places: Places, state: GpuState | None
) -> tuple[Range, ...]:
    """What each of the kernel's bindings holds: from the first of its values to the end of the last."""
    found = {one.name: places.range(dispatch.buffers[one.name], state) for one in kernel.buffers}
    for name, other in kernel.shares.items():
        buffer, start, size = places.range(dispatch.buffers[name], state)
        _, first, n_bytes = found[other]
        begin = min(start, first)
        found[other] = buffer, begin, max(start + size, first + n_bytes) - begin
    return tuple(found.values())


def begins(kernel: Specialised, dispatch: Dispatch, places: Places) -> Mapping[str, int]:
    """The hidden scalars: at which element of its binding each argument begins."""
    if not kernel.shares:
        return {f"{array.name}_at": 0 for array in kernel.tree.buffers}
    first = dict(
        zip((one.name for one in kernel.buffers), ranges(kernel, dispatch, places, None), strict=True)
    )
    found = {}
    for array in kernel.tree.buffers:
        _, binding, _ = first[kernel.shares.get(array.name, array.name)]
        _, start, _ = places.range(dispatch.buffers[array.name], None)
        found[f"{array.name}_at"] = (start - binding) // array.element.n_bytes
    return found
