"""How many rows a step may have: as many as take the time that everybody may wait for a token.

The duration of a step is the time between two tokens for all sequences in it. Knows counts and seconds.
"""

from __future__ import annotations

_FEWEST = 16
_SHARE = 0.2  # of the latest step in the average


class StepBudget:
    """Rows of a step that takes `target_s` at the measured speed; `most` while nobody waits for a token."""

    def __init__(self, target_s: float, most: int) -> None:
        self._target_s, self._most = target_s, most
        self._row_s: float | None = None

    def rows(self, someone_decodes: bool) -> int:
        """Rows of the next step."""
        if not someone_decodes:
            return self._most
        if self._row_s is None:
            return min(self._most, 4 * _FEWEST)
        return max(min(_FEWEST, self._most), min(self._most, int(self._target_s / self._row_s)))

    def measured(self, n_rows: int, seconds: float) -> None:
        """A step of so many rows took so long. Short steps do not count: a row costs less in long ones."""
        if n_rows >= min(_FEWEST, self._most):
            row_s = seconds / n_rows
            self._row_s = row_s if self._row_s is None else self._row_s + _SHARE * (row_s - self._row_s)
