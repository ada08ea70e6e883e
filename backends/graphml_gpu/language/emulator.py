"""Runs a kernel in Python, an invocation at a time, and says what a device would not: see `run`.

The invocations of a workgroup run one after another from one barrier to the next. Shared memory remembers who
wrote it: what another invocation of another subgroup wrote since the last barrier may not be read.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NoReturn

import numpy as np

from graphml.errors import BackendError
from graphml_gpu.language import arithmetic
from graphml_gpu.language.arithmetic import Numbers, Runtime
from graphml_gpu.language.features import Features
from graphml_gpu.language.python import python
from graphml_gpu.language.tree import Array, Tree

AnyArray = np.ndarray[Any, Any]
_WAITING = Generator[tuple[str, Any, Any], Any, None]


@dataclass
class Place:
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


class Elements:
    """An array as kernels see it: bounds are checked; shared memory knows who wrote since a barrier."""

    def __init__(self, kernel: str, array: Array, held: AnyArray, begin: int = 0) -> None:
        self.kernel, self.array, self.held, self.begin = kernel, array, held, begin
        self.shared = array.space == "shared"
        self.writers: dict[int, int] = {}
        self.me = 0

    def fail(self, message: str) -> NoReturn:
        """Raise `BackendError` for the invocation that runs."""
        raise BackendError(f"kernel {self.kernel}, invocation {self.me}: `{self.array.name}` {message}")

    def place(self, index: Any) -> int:
        """An index as a place in what is held."""
        place = int(index) + self.begin
        if not 0 <= place < len(self.held) or int(index) < 0:
            self.fail(f"has {len(self.held) - self.begin} elements, none at {int(index)}")
        return place

    def __getitem__(self, index: Any) -> Any:
        place = self.place(index)
        if self.shared and self.writers.get(place, self.me) != self.me:
            self.fail(f"[{place}] was written by invocation {self.writers[place]}, with no barrier since")
        value = self.held[place]
        return value.copy() if self.array.element.lanes > 1 else value

    def __setitem__(self, index: Any, value: Any) -> None:
        place = self.place(index)
        if self.shared:
            if self.writers.get(place, self.me) != self.me and not self.array.atomic:
                self.fail(
                    f"[{place}] was written by invocation {self.writers[place]} too, with no barrier between"
                )
            self.writers[place] = self.me
        self.held[place] = value

    def atomic(self, operator: str, index: Any, value: Any) -> Any:
        """Change an element; what it held."""
        place = self.place(index)
        old = self.held[place]
        change: Mapping[str, Callable[[Any, Any], Any]] = {
            "add": np.add,
            "max": np.maximum,
            "min": np.minimum,
            "or": np.bitwise_or,
        }
        self.held[place] = change[operator](old, value)
        return old


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
    nan_holds: what comes of a NaN's comparisons; see `Numbers`. None: what IEEE 754 says.
    """
    types = arithmetic.types(features)
    held = {}
    for buffer in tree.buffers:
        begin = int(scalars.get(f"{buffer.name}_at", 0))
        held[buffer.name] = Elements(tree.name, buffer, _elements(tree.name, buffer, buffers, types), begin)
    for table in tree.tables:
        held[table.name] = Elements(tree.name, table, np.array(table.values, types[table.element.kind]))
    values = {name: types[kind.kind](scalars[name]) for name, kind in tree.scalars}
    runtime = Runtime(types) if nan_holds is None else Numbers(types, nan_holds)
    x, y, z = tree.group
    teams = lanes.teams(features, x * y * z)
    sizes = tuple(groups) + (1,) * (3 - len(groups))
    with np.errstate(all="ignore"):
        for z, y, x in product(*(range(size) for size in reversed(sizes))):
            _group(tree, teams, function, runtime, held, values, (x, y, z), sizes)


def compiled(tree: Tree, title: str) -> Callable[..., Any]:
    """The function; its text is shown by debuggers and tracebacks under the kernel's name."""
    text = python(tree, title)
    file = f"<kernel {title}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {}
    exec(compile(text, file, "exec"), names)
    return names[tree.name]  # type: ignore[no-any-return]


def _elements(
    kernel: str, buffer: Array, buffers: Mapping[str, AnyArray], types: Mapping[str, Any]
) -> AnyArray:
    """A buffer as an array [elements] or [elements, lanes] of its type, on the caller's memory."""
    given = buffers[buffer.name]
    kind = np.float16 if buffer.element.kind == "f16" else types[buffer.element.kind]
    if not given.flags.c_contiguous:
        raise BackendError(f"kernel {kernel}: buffer `{buffer.name}`: wanted an array without gaps")
    flat = given.reshape(-1).view(kind)
    return flat.reshape(-1, buffer.element.lanes) if buffer.element.lanes > 1 else flat


def _arrays(tree: Tree, space: str, types: Mapping[str, Any]) -> Iterator[tuple[str, Elements]]:
    """New shared or private arrays, filled with what no kernel should rely on."""
    for array in tree.arrays:
        if array.space == space:
            shape = (array.length,) if array.element.lanes == 1 else (array.length, array.element.lanes)
            garbage = np.nan if array.element.is_float else 0x5EED if array.element.is_integer else False
            held: AnyArray = np.full(shape, garbage, types[array.element.kind])
            yield array.name, Elements(tree.name, array, held)


def _group(
    tree: Tree,
    teams: list[list[int]],
    function: Callable[..., Any],
    runtime: Runtime,
    held: Mapping[str, Elements],
    values: Mapping[str, Any],
    group: tuple[int, int, int],
    groups: tuple[int, ...],
) -> None:
    shared = dict(_arrays(tree, "shared", runtime.types))
    seen = [*held.values(), *shared.values()]
    waiting: list[_WAITING | None] = []
    for number, place in enumerate(_places(tree, teams, group, groups)):
        private = dict(_arrays(tree, "private", runtime.types))
        for elements in seen:
            elements.me = number
        waiting.append(function(rt=runtime, rt_place=place, **held, **shared, **private, **values))
    if waiting[0] is not None:
        _meet(tree, [w for w in waiting if w is not None], teams, list(shared.values()), seen)


def _places(
    tree: Tree, teams: list[list[int]], group: tuple[int, int, int], groups: tuple[int, ...]
) -> Iterator[Place]:
    def numbers(values: Sequence[int]) -> tuple[np.uint32, ...]:
        return tuple(np.uint32(value) for value in values)

    at = {n: (lane, number) for number, team in enumerate(teams) for lane, n in enumerate(team)}
    sizes = tree.group
    for i, (z, y, x) in enumerate(product(range(sizes[2]), range(sizes[1]), range(sizes[0]))):
        everywhere = [group[d] * sizes[d] + (x, y, z)[d] for d in range(3)]
        yield Place(
            numbers(group),
            numbers((x, y, z)),
            numbers(everywhere),
            numbers(groups),
            *numbers((i, len(teams), *at[i])),
        )


def _meet(
    tree: Tree,
    waiting: list[_WAITING],
    teams: list[list[int]],
    shared: list[Elements],
    seen: list[Elements],
) -> None:
    """Run the invocations of a group from one meeting to the next until all have ended."""
    asked: list[tuple[str, Any, Any] | None] = [None] * len(waiting)
    answers: list[Any] = [None] * len(waiting)
    running = list(range(len(waiting)))
    while running:
        for number in running:
            for elements in seen:
                elements.me = number
            try:
                asked[number] = waiting[number].send(answers[number])
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
    for lanes in teams:
        requests = [r for n in lanes if (r := asked[n]) is not None and r[0] not in ("barrier", "uniform")]
        if not requests:
            continue
        if len(requests) < len(lanes) or len({operator for operator, _, _ in requests}) > 1:
            raise BackendError(
                f"kernel {tree.name}: an operation across a subgroup is reached by {len(requests)} of the "
                f"invocations {lanes}"
            )
        values = [value for _, value, _ in requests]
        for lane, (n, (operator, _, by)) in enumerate(zip(lanes, requests, strict=True)):
            answers[n] = arithmetic.across(operator, values, lane, by)
        going += lanes
    return going


def _all(
    tree: Tree, asked: list[tuple[str, Any, Any] | None], answers: list[Any], shared: list[Elements]
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
