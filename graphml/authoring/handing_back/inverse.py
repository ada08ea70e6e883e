"""The tensors of a checkpoint from ours: what its family does to them, found by numbers and undone.

The family maps a checkpoint whose numbers say where they are: what comes out says which number of which
tensor each of ours is. Numbers that are changed besides, as 1 + weight, are tried with the inverses that are
known. Knows moves of numbers and those inverses; nothing of single families.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.errors import UsageError
from graphml.loading.huggingface.family import To
from graphml.loading.huggingface.folder import FamilyCheckpoint
from graphml.loading.huggingface.tensors import EMBEDDING, OUTPUT, looked_up, our_name, our_tensors
from graphml.weights import Tensor
from graphml.weights.deferred import DeferredTensor

Array = NDArray[Any]
MOST_PLACES = 1 << 32
MOST_VALUES = 1 << 20  # of a tensor whose numbers are changed: further ones would not be told apart
SHIFT = 0x1357
WHOLE = ("i8", "i16", "i32", "i64")  # types of tensors of ids, which are no numbers of their own here
STEPS, SMALLEST_STEP = 64, 2.0**-27  # to the next numbers, where an inverse rounds
FORMULAS: Mapping[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "1 + x": (lambda x: np.float32(1) + x, lambda y: y - 1.0),
    "-exp(x)": (lambda x: -np.exp(x), lambda y: np.log(-y)),
}
"""Changes of numbers that are undone: what is computed, and its inverse."""


@dataclass(frozen=True)
class NumberPlaces:
    """Where the numbers of one of our tensors are from: `sources`, and for each number which of them, where.

    formula: what is computed of them, one of `FORMULAS`; empty: nothing.
    """

    sources: tuple[str, ...]
    which: Array
    at: Array
    formula: str = ""


class _Numbered(DeferredTensor):
    """A tensor of a checkpoint that has its places for numbers, made anew whenever they are read."""

    @property
    def data(self) -> Array:
        """The places as bits of float32."""
        numbers: Array = vars(self)["_numbers"]()
        return numbers.view(np.uint8)


class _Mapped:
    """Our tensors of a checkpoint whose numbers are their places, from `first` on, or floats that follow."""

    def __init__(
        self, read: FamilyCheckpoint, held: Mapping[str, Tensor], first: int, tied: bool, floats: bool = False
    ) -> None:
        self.first, self.floats = first, floats
        self.starts: dict[str, int] = {}
        self.total = first
        numbered: dict[str, Tensor] = {}
        for name, of in held.items():
            if of.dtype in WHOLE:
                numbered[name] = of
                continue
            tensor = _Numbered.of(name, "f32", of.shape, lambda: np.zeros(0, np.uint8))
            vars(tensor)["_numbers"] = partial(self._numbers, name, prod(of.shape))
            numbered[name] = tensor
        self.tensors = our_tensors(read.config, read.family, numbered, tied, read.wrapped)

    def _numbers(self, name: str, count: int) -> Array:
        start = self.starts.setdefault(name, self.total)
        self.total = max(self.total, start + count)
        if self.floats:
            return float_places(count)
        return np.arange(start, start + count, dtype=np.uint32)

    def read(self, name: str) -> tuple[Array, dict[str, int]]:
        """The numbers of one of our tensors, as bits, and where those of its sources begin."""
        self.starts, self.total = {}, self.first
        bits = np.asarray(self.tensors.pop(name).data).view(np.uint32)
        return bits, self.starts


def float_places(count: int) -> Array:
    """Distinct float32 numbers in (0, 1) for places."""
    return (np.arange(1, count + 1) / (count + 1)).astype(np.float32)


def _targets(read: FamilyCheckpoint, name: str) -> list[str]:
    """Our names, with `{}`, of a tensor of the checkpoint."""
    entry, _, suffix = looked_up(read.family, name)
    return [(target.name if isinstance(target, To) else target) + suffix for target in entry or ()]


def _ours(read: FamilyCheckpoint, name: str) -> list[str]:
    """Our names of a tensor of the checkpoint."""
    entry, numbers, suffix = looked_up(read.family, name)
    kept = (to for to in entry or () if not isinstance(to, To) or to.is_read(read.config, numbers))
    return [our_name(read.config, target, numbers, suffix) for target in kept]


class Inverse:
    """The places of our tensors, `names`. has_output: the model has an output matrix beside the embedding.

    tied: the checkpoint has the embedding alone. left_out: tensors of the checkpoint that are another of its
    tensors. sources: those that each of ours is of. others: ours that follow from config.json, or are ids.
    """

    def __init__(self, read: FamilyCheckpoint, has_output: bool) -> None:
        self.read = read
        held = dict(read.tensors)
        if not has_output and any(EMBEDDING in _targets(read, name) for name in held):
            held = {name: of for name, of in held.items() if OUTPUT not in _targets(read, name)}
        self.left_out = tuple(read.tensors.keys() - held.keys())
        self.tied = not any(OUTPUT in _targets(read, name) for name in held)
        self._runs = [_Mapped(read, held, first, self.tied) for first in (0, SHIFT)]
        self._floats = _Mapped(read, held, 0, self.tied, floats=True)
        layers = range(read.config.size("block_count"))
        stored = {place.format(i) for place in (*read.family.numbers, *read.family.lists) for i in layers}
        others = stored | read.config.tensors.keys()
        self.names = tuple(name for name in self._runs[0].tensors if name not in others)
        self.sources: dict[str, list[str]] = {name: [] for name in self.names}
        for name in held:
            for ours in _ours(read, name):
                self.sources.setdefault(ours, []).append(name)
        of_ids = [name for name in self.names if self._is_of_ids(name)]
        self.names = tuple(name for name in self.names if name not in of_ids)
        self.others = {*read.config.tensors, *of_ids}
        for ours, other in ((EMBEDDING, OUTPUT), (OUTPUT, EMBEDDING)):
            if ours in self.sources and not self.sources[ours]:
                self.sources[ours] = self.sources.get(other, [])

    def _is_of_ids(self, name: str) -> bool:
        return any(self.read.tensors[source].dtype in WHOLE for source in self.sources[name])

    def places(self, name: str) -> NumberPlaces:
        """Where the numbers of one of our tensors are from; UsageError where that is not known."""
        total = sum(prod(self.read.tensors[source].shape) for source in self.sources[name])
        if total + SHIFT > MOST_PLACES:
            raise UsageError(f"{name}: convert: {total} numbers in one tensor: at most {MOST_PLACES - SHIFT}")
        bits, starts = self._runs[0].read(name)
        moved, later = self._runs[1].read(name)
        if starts.keys() - set(self.sources[name]):
            raise UsageError(f"{name}: convert: is of {', '.join(starts)}, which is not known of its family")
        if starts.keys() == later.keys() and np.array_equal(moved - bits, np.full_like(bits, SHIFT)):
            begins = np.array(list(starts.values()), np.int64)
            which = np.searchsorted(begins, bits, "right") - 1 if len(begins) > 1 else np.zeros(1, np.int64)
            return NumberPlaces(tuple(starts), which, bits - begins[which])
        computed = self._by_formula(name)
        if computed is None:
            sources = ", ".join(sorted(starts)[:3]) or "no tensor"
            raise UsageError(
                f"{name}: convert: cannot be written back: it is computed from {sources} in a way that has "
                "no inverse here"
            )
        return computed

    def _by_formula(self, name: str) -> NumberPlaces | None:
        bits, starts = self._floats.read(name)
        values = bits.view(np.float32)
        count = prod(self.read.tensors[next(iter(starts))].shape) if len(starts) == 1 else MOST_VALUES + 1
        for formula, (computed, inverse) in FORMULAS.items() if count <= MOST_VALUES else ():
            with np.errstate(all="ignore"):
                at = (
                    np.nan_to_num(inverse(values.astype(np.float64)) * (count + 1)).round().astype(np.int64)
                    - 1
                )
            if ((at >= 0) & (at < count)).all() and np.allclose(
                computed(float_places(count)[at]), values, rtol=1e-6, atol=0
            ):
                return NumberPlaces(tuple(starts), np.zeros(1, np.int64), at, formula)
        return None


def undone(formula: str, values: Array) -> Array:
    """The numbers of which these are computed, so near that they are computed again to the bit if any is."""
    computed, inverse = FORMULAS[formula]
    with np.errstate(all="ignore"):
        whole = inverse(values.astype(np.float64))
        best = whole.astype(np.float32)
        step = np.maximum(np.spacing(np.abs(best)), SMALLEST_STEP)
        for count in range(1, STEPS + 1):
            for tried in ((whole + way * count * step).astype(np.float32) for way in (-1, 1)):
                best = np.where((computed(best) != values) & (computed(tried) == values), tried, best)
    return best


def rebuilt(
    inverse: Inverse, tensors: Mapping[str, Tensor], edited: set[str]
) -> Iterator[tuple[str, Array, tuple[str, ...]]]:
    """The checkpoint's tensors with an edited number: name, float32 values, and the types of ours in them.

    Numbers that nothing of ours has are those of the checkpoint. UsageError for what has no inverse, and for
    a number that two of ours want to be another.
    """
    changed = {source for name in edited for source in inverse.sources[name]}
    users: dict[str, int] = {}
    for name in inverse.names:
        for source in inverse.sources[name]:
            users[source] = users.get(source, 0) + 1
    parts: dict[str, _Part] = {}
    for name in inverse.names:
        sources = inverse.sources[name]
        if changed.isdisjoint(sources):
            continue
        places = inverse.places(name)
        values = np.asarray(tensors[name].numpy(), np.float32).reshape(-1)
        values = undone(places.formula, values) if places.formula else values
        for number, source in enumerate(places.sources):
            if source in changed:
                own = slice(None) if len(places.sources) == 1 else places.which == number
                tensor = inverse.read.tensors[source]
                part = parts.setdefault(source, _Part(tensor, np.zeros(prod(tensor.shape), np.float32)))
                part.fill(name, places.at[own], values[own], tensors[name].dtype)
        for source in sources:
            users[source] -= 1
            if source in parts and not users[source]:
                yield parts.pop(source).whole()


@dataclass(eq=False)
class _Part:
    """A tensor of the checkpoint of which some numbers are known. kinds: types of those of ours in it."""

    tensor: Tensor
    values: Array
    kinds: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_known = np.zeros(len(self.values), bool)

    def fill(self, ours: str, at: Array, values: Array, kind: str) -> None:
        """Put numbers in their places; UsageError for a place that has another number."""
        before, name = self.is_known[at], self.tensor.name
        if not _same(self.values[at[before]], values[before]):
            raise UsageError(f"{ours}: convert: {name} would have another number for another tensor")
        self.values[at], self.is_known[at] = values, True
        if not _same(self.values[at], values):
            raise UsageError(f"{ours}: convert: {name} has one number where several are wanted")
        self.kinds[kind] = None

    def whole(self) -> tuple[str, Array, tuple[str, ...]]:
        """Name, values and types; what nothing of ours has is the checkpoint's own."""
        if not self.is_known.all():
            own = np.asarray(self.tensor.numpy(), np.float32).reshape(-1)
            self.values = np.where(self.is_known, self.values, own)
        return self.tensor.name, self.values.reshape(self.tensor.shape), tuple(self.kinds)


def _same(left: Array, right: Array) -> bool:
    return np.array_equal(left.view(np.uint32), right.view(np.uint32))
