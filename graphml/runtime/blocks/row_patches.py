"""Patches as data: rows in place of those of some tokens, or added to them.

Knows arrays and positions; nothing of graphs, plans or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.options.argument_checks import items_of, whole_number
from graphml.passes.patch import Function


def positions_of(positions: object) -> tuple[int, ...]:
    """Positions of tokens, each a whole number from 0 on and given once; UsageError for others."""
    checked = tuple(whole_number(place) for place in items_of("positions", positions, "whole numbers"))
    if len(set(checked)) < len(checked) or any(place is None or place < 0 for place in checked):
        raise UsageError(f"positions: wanted different whole numbers from 0 on; got {positions!r:.80}")
    return tuple(place for place in checked if place is not None)


@dataclass(frozen=True, eq=False)
class PatchRows:
    """What a patch may be in place of a function: it changes the rows of tokens at some positions.

    rows: an array [...] for each token, or [n, ...], one for each of n positions. positions: which tokens of
    the text, 0 is its first; None: all, prompt and generated ones. add: rows are added to what is computed
    and do not replace it. UsageError for other numbers of rows.
    """

    rows: Array
    positions: Sequence[int] | None = None
    add: bool = False

    def __post_init__(self) -> None:
        try:
            rows = np.asarray(self.rows)
        except ValueError:  # lists of different lengths
            rows = np.empty(0, object)
        with np.errstate(over="ignore"):
            finite = rows.dtype.kind in "fiu" and np.isfinite(rows.astype(np.float32)).all()
        if not finite:
            raise UsageError("patch: wanted rows of finite numbers, all of one shape")
        object.__setattr__(self, "rows", rows)
        if self.positions is not None:
            object.__setattr__(self, "positions", positions_of(self.positions))

    def check(self, pattern: str, name: str, shape: Sequence[object]) -> None:
        """UsageError where the rows of a value, each of this shape, are others."""
        wanted, got = list(shape), list(self.rows.shape)
        if got != wanted and (self.positions is None or got != [len(self.positions), *wanted]):
            of = "" if self.positions is None else f", or {[len(self.positions), *wanted]}"
            raise UsageError(f"patch {pattern!r} at {name}: wanted rows {wanted}{of}; got {got}")

    def at(self, array: Array, end: int) -> Array:
        """The array, whose rows end before position `end`, with the rows in place or added."""
        rows, start = self.rows, end - len(array)
        if self.positions is None:
            places, values = np.arange(len(array)), rows
        else:
            inside = [(i, place - start) for i, place in enumerate(self.positions) if start <= place < end]
            places = np.array([place for _, place in inside], np.int64)
            values = rows if rows.ndim < array.ndim else rows[[i for i, _ in inside]]
        array[places] = (array[places] + values if self.add else values).astype(array.dtype, copy=False)
        return array


class PatchPoint:
    """A patch in a program whose function is chosen by each step; `function`: where a plan says none.

    So a program serves all requests that patch the same values. end: the position behind the step's rows.
    """

    def __init__(self, function: Function | PatchRows | None = None) -> None:
        self.function, self.end = function, 0

    def __call__(self, array: Array) -> Array | None:
        """See `graphml.passes.patch.Patch`."""
        if isinstance(self.function, PatchRows):
            return self.function.at(array, self.end)
        return None if self.function is None else self.function(array)
