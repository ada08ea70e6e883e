"""How many rows a step may have: as many as take the time that everybody may wait for a token.

The duration of a step is the time between two tokens for all sequences in it. Knows counts and seconds.
"""

from __future__ import annotations

FEWEST = 16
"""Rows that prompts get in a step, however slow it is and however many sequences generate."""
_SHARE = 0.2  # of the latest step in the average


class StepBudget:
    """Rows of a step that takes `target_s` at the measured speed; `most` while nobody waits for a token."""

    def __init__(self, target_s: float, most: int) -> None:
        self._target_s, self._most = target_s, most
        self._row_s: float | None = None

    def rows(self, n_decoding: int) -> int:
        """Rows of the next step, in which so many sequences wait for a token."""
        if not n_decoding:
            return self._most
        rows = 4.0 * FEWEST if self._row_s is None else self._target_s / self._row_s
        return int(min(self._most, max(n_decoding + FEWEST, rows)))

    def measured(self, n_rows: int, seconds: float) -> None:
        """A step of so many rows took so long. Short steps do not count: a row costs less in long ones."""
        if n_rows >= min(FEWEST, self._most):
            row_s = max(seconds, 1e-6) / n_rows
            self._row_s = row_s if self._row_s is None else self._row_s + _SHARE * (row_s - self._row_s)
