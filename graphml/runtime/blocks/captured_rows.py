"""The captured values of one sequence: its rows of each step, joined in the order of its positions.

Knows arrays and positions; nothing of plans or programs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from graphml.ir.op import Array

PREFIX = "value:"
"""Of the names of outputs that are captured values."""


class CapturedRows:
    """symbols: name of a value -> what its rows are: T tokens, O those that give logits, None neither.

    positions: the tokens whose rows are kept; None: all. A row that is computed again, as after preemption,
    is kept once. Of a value without such rows the latest is kept.
    """

    def __init__(
        self, symbols: Mapping[str, str | None] | None = None, positions: Collection[int] | None = None
    ) -> None:
        self._symbols = symbols or {}
        self._positions = None if positions is None else frozenset(positions)
        self.begin()

    def begin(self) -> None:
        """Nothing is captured yet."""
        self._parts: dict[str, list[Array]] = {}
        self._ends: dict[str, int] = {}

    @property
    def of_outputs(self) -> bool:
        """Whether a value has no rows but those that give logits."""
        return "O" in self._symbols.values()

    def take(self, outputs: Mapping[str, Array], end: int, at: Mapping[str, slice]) -> None:
        """Copy its rows of a step, by symbol, which end before position `end`; `outputs` may change then."""
        for name, symbol in self._symbols.items():
            array = outputs[PREFIX + name]
            if symbol is None or symbol not in at:
                self._parts[name] = [array.copy()]
                continue
            rows = array[at[symbol]]
            first = max(end - len(rows), self._ends.get(name, 0))
            rows = rows[len(rows) - max(end - first, 0) :]
            if self._positions is not None:
                rows = rows[[i for i in range(len(rows)) if first + i in self._positions]]
            self._parts.setdefault(name, []).append(rows.copy())
            self._ends[name] = max(end, first)

    def taken(self) -> dict[str, Array]:
        """As `arrays`, and hold nothing any more."""
        arrays = self.arrays()
        self.begin()
        return arrays

    def arrays(self) -> dict[str, Array]:
        """Name -> rows of all that was taken, in the order of the names."""
        parts = {name: self._parts[name] for name in self._symbols if name in self._parts}
        return {name: np.concatenate(some) if len(some) > 1 else some[0] for name, some in parts.items()}
