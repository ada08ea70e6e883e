"""Runs a kernel in Python, an invocation at a time, and says what a device would not: see `run`.

The invocations of a workgroup run one after another from one barrier to the next. Shared memory remembers who
wrote it: what another invocation of another subgroup wrote since the last barrier may not be read.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from graphml.errors import BackendError
from graphml_gpu.language import arithmetic
from graphml_gpu.language.arithmetic import NoNanRuntime, Runtime
from graphml_gpu.language.emulated_arrays import CheckedArray, Shared, Turn, of_memory
from graphml_gpu.language.features import Features
from graphml_gpu.language.python import python
from graphml_gpu.language.scalars import of_type
from graphml_gpu.language.tree import ArrayVariable, Tree

AnyArray = np.ndarray[Any, Any]
_WAITING = Generator[tuple[str, Any, Any], Any, None]


@dataclass(slots=True)
class InvocationPlace:
    """Where an invocation is, as its kernel asks for it."""

    group_id: tuple[np.uint32, ...]
    local_id: tuple[np.uint32, ...]
    global_id: tuple[np.uint32, ...]
    num_groups: tuple[np.uint32, ...]
    local_index: np.uint32
    subgroup_count: np.uint32
    subgroup_lane: np.uint32
    subgroup_id: np.uint32


@dataclass(frozen=True)
class Lanes:
    """How the invocations of a workgroup are shared out to subgroups, which no device promises.

    size: of a subgroup, 0 for the smallest that the features allow. apart: the lanes of a subgroup are as far
    from each other as they can be, instead of neighbours. The last subgroup may be filled in part.
    """

    size: int = 0
    apart: bool = False

    def teams(self, features: Features, invocations: int) -> list[list[int]]:
        """The invocations of each subgroup, lane by lane."""
        width = (self.size or features.subgroup_min) if features.subgroups else 1
        if self.apart:
            count = -(-invocations // width)
            return [list(range(first, invocations, count)) for first in range(count)]
        every = range(invocations)
        return [list(every[first : first + width]) for first in range(0, invocations, width)]


NEIGHBOURS = Lanes()


def run(
    tree: Tree,
    function: Callable[..., Any],
    features: Features,
    buffers: Mapping[str, AnyArray],
    scalars: Mapping[str, int | float],
    groups: Sequence[int],
    lanes: Lanes,
    nan_holds: bool | None = None,
) -> None:
    """Run all workgroups; buffers are written in place. `BackendError` for what would go wrong on a device.

    That is an index out of bounds, a race in shared memory, or a barrier that only a part of a group reaches.
    nan_holds: what comes of a NaN's comparisons; see `NoNanRuntime`. None: what IEEE 754 says.
    """
    types = arithmetic.types(features)
    turn = Turn(tree.name)
    held = {}
    for buffer in tree.buffers:
        begin = int(scalars.get(f"{buffer.name}_at", 0))
        held[buffer.name] = of_memory(turn, buffer, _elements(tree.name, buffer, buffers, types), begin)
    for table in tree.tables:
        held[table.name] = CheckedArray(turn, table, list(np.array(table.values, types[table.element.kind])))
    values = {name: types[kind.kind](scalars[name]) for name, kind in tree.scalars}
    runtime = Runtime(types) if nan_holds is None else NoNanRuntime(types, nan_holds)
    x, y, z = tree.group
    teams = lanes.teams(features, x * y * z)
    sizes = tuple(groups) + (1,) * (3 - len(groups))
    places = list(_places(tree, teams, sizes))
    with np.errstate(all="ignore"):
        for z, y, x in product(*(range(size) for size in reversed(sizes))):
            _move(places, (x, y, z), tree.group)
            _group(tree, teams, function, runtime, {**held, **values}, places, turn)


def compiled(tree: Tree, title: str, features: Features) -> Callable[..., Any]:
    """The function; its text is shown by debuggers and tracebacks under the kernel's name."""
    text = python(tree, title)
    file = f"<kernel {title}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"rt": Runtime(arithmetic.types(features))}
    exec(compile(text, file, "exec"), names)
    return names[tree.name]  # type: ignore[no-any-return]


def _elements(
    kernel: str, buffer: ArrayVariable, buffers: Mapping[str, AnyArray], types: Mapping[str, Any]
) -> AnyArray:
    """A buffer as an array [elements] or [elements, lanes] of its type, on the caller's memory."""
    array = buffers[buffer.name]
    kind = np.float16 if buffer.element.kind == "f16" else types[buffer.element.kind]
    if not array.flags.c_contiguous:
        raise BackendError(f"kernel {kernel}: buffer `{buffer.name}`: wanted an array without gaps")
    flat = array.reshape(-1).view(kind)
    return flat.reshape(-1, buffer.element.lanes) if buffer.element.lanes > 1 else flat


def _arrays(tree: Tree, space: str, types: Mapping[str, Any]) -> Iterator[tuple[ArrayVariable, list[Any]]]:
    """New shared or private arrays, filled with what no kernel should rely on."""
    for array in tree.arrays:
        if array.space == space:
            garbage = np.nan if array.element.is_float else 0x5EED if array.element.is_integer else False
            lanes, scalar = array.element.lanes, types[array.element.kind]
            value = scalar(garbage) if lanes == 1 else np.full(lanes, garbage, scalar)
            yield array, [value] * (array.length or 0)


def _group(
    tree: Tree,
    teams: list[list[int]],
    function: Callable[..., Any],
    runtime: Runtime,
    arguments: Mapping[str, Any],
    places: list[InvocationPlace],
    turn: Turn,
) -> None:
    shared = {a.name: Shared(turn, a, held) for a, held in _arrays(tree, "shared", runtime.types)}
    waiting: list[_WAITING | None] = []
    for number, place in enumerate(places):
        private = {a.name: CheckedArray(turn, a, held) for a, held in _arrays(tree, "private", runtime.types)}
        turn.invocation = number
        waiting.append(function(rt=runtime, rt_place=place, **arguments, **shared, **private))
    if waiting[0] is not None:
        _meet(tree, [w for w in waiting if w is not None], teams, list(shared.values()), turn)


def _places(tree: Tree, teams: list[list[int]], groups: Sequence[int]) -> Iterator[InvocationPlace]:
    """Of the invocations of a workgroup; the workgroup itself is for `_move`."""
    at = {n: (lane, number) for number, team in enumerate(teams) for lane, n in enumerate(team)}
    for i, (z, y, x) in enumerate(product(*(range(size) for size in reversed(tree.group)))):
        local, none = _numbers((x, y, z)), _numbers((0, 0, 0))
        yield InvocationPlace(none, local, none, _numbers(groups), *_numbers((i, len(teams), *at[i])))


def _move(places: list[InvocationPlace], group: tuple[int, int, int], sizes: tuple[int, int, int]) -> None:
    """Make the places those of another workgroup."""
    begins, number = [n * size for n, size in zip(group, sizes, strict=True)], _numbers(group)
    for place in places:
        place.group_id = number
        place.global_id = _numbers([b + int(n) for b, n in zip(begins, place.local_id, strict=True)])


def _numbers(values: Sequence[int]) -> tuple[np.uint32, ...]:
    return tuple(of_type(np.uint32, value) for value in values)


def _meet(
    tree: Tree, waiting: list[_WAITING], teams: list[list[int]], shared: list[Shared], turn: Turn
) -> None:
    """Run the invocations of a group from one meeting to the next until all have ended."""
    asked: list[tuple[str, Any, Any] | None] = [None] * len(waiting)
    answers: list[Any] = [None] * len(waiting)
    running = list(range(len(waiting)))
    goes_on = [thread.send for thread in waiting]
    while running:
        for number in running:
            turn.invocation = number
            try:
                asked[number] = goes_on[number](answers[number])
            except StopIteration:
                asked[number] = None
            answers[number] = None
        running = _subgroups(tree, asked, answers, teams)
        if not running:
            running = _all(tree, asked, answers, shared)


def _subgroups(
    tree: Tree, asked: list[tuple[str, Any, Any] | None], answers: list[Any], teams: list[list[int]]
) -> list[int]:
    """Answer the subgroups whose invocations all ask across; the invocations that go on."""
    going: list[int] = []
    if all(request is None or request[0] in ("barrier", "uniform") for request in asked):
        return going
    for lanes in teams:
        requests = [r for n in lanes if (r := asked[n]) is not None and r[0] not in ("barrier", "uniform")]
        if not requests:
            continue
        if len(requests) < len(lanes) or len({operator for operator, _, _ in requests}) > 1:
            raise BackendError(
                f"kernel {tree.name}: an operation across a subgroup is reached by {len(requests)} of the "
                f"invocations {lanes}"
            )
        (operator, *_), values, by = requests[0], *([r[i] for r in requests] for i in (1, 2))
        for n, answer in zip(lanes, arithmetic.across(operator, values, by), strict=True):
            answers[n] = answer
        going += lanes
    return going


def _all(
    tree: Tree, asked: list[tuple[str, Any, Any] | None], answers: list[Any], shared: list[Shared]
) -> list[int]:
    """All go on from a barrier or a uniform value, if all are at the same one, and have the same value."""
    at = {request[1] for request in asked if request is not None}
    if not at:
        return []
    if None in asked or len(at) > 1:
        behind = [n for n, request in enumerate(asked) if request is None]
        uniform = any(request[0] == "uniform" for request in asked if request is not None)
        raise BackendError(
            f"kernel {tree.name}: not all invocations reach {'uniform()' if uniform else 'the barrier'} at"
            f" {', '.join(sorted(at))}" + (f"; ended: {behind[:8]}" if behind else "")
        )
    requests = [request for request in asked if request is not None]
    if requests[0][0] == "uniform":
        answers[:] = _alike(tree, requests)
    else:
        for elements in shared:
            elements.writers.clear()
    return list(range(len(asked)))


def _alike(tree: Tree, requests: list[tuple[str, Any, Any]]) -> list[Any]:
    """The values of all invocations, which must be the same, bit by bit."""
    values = [value for _, _, value in requests]
    for n, value in enumerate(values):
        if value.tobytes() != values[0].tobytes():
            raise BackendError(
                f"kernel {tree.name}: the value of uniform() at {requests[0][1]}: invocation 0 has"
                f" {values[0]}, invocation {n} has {value}"
            )
    return values
