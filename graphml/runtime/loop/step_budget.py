"""How many rows a step may have: as many as take the time that everybody may wait for a token.

The duration of a step is the time between two tokens for all sequences in it. Where many prompts wait beside
them, it may be longer, up to twice: rows of generated tokens are computed in each step, so the fewer steps
there are, the sooner the last prompt is computed. Knows counts and seconds.
"""

from __future__ import annotations

FEWEST = 16
"""Rows that prompts get in a step, however slow it is and however many sequences generate."""
_MOST_STRETCH = 2.0
"""How much longer than its target a step is at most."""
_CROWD = 4
"""Where one of so many sequences, or more of them, is at its prompt, steps are stretched most."""
_SHARE = 0.2  # of the latest step in the average


class StepBudget:
    """Rows of a step that takes `target_s` at the measured speed; `most` while nobody waits for a token."""

    def __init__(self, target_s: float, most: int) -> None:
        self._target_s, self._most = target_s, most
        self._row_s: float | None = None

    def rows(self, n_decoding: int, n_prompts: int = 0) -> int:
        """Rows of the next step, in which so many sequences wait for a token and so many are at prompts."""
        if not n_decoding:
            return self._most
        crowd = min(1.0, _CROWD * n_prompts / (n_decoding + n_prompts))
        target_s = self._target_s * (1.0 + (_MOST_STRETCH - 1.0) * crowd)
        rows = 4.0 * FEWEST if self._row_s is None else target_s / self._row_s
        return int(min(self._most, max(n_decoding + FEWEST, rows)))

    def measured(self, n_rows: int, seconds: float) -> None:
        """A step of so many rows took so long. Short steps do not count: a row costs less in long ones."""
        if n_rows >= min(FEWEST, self._most):
            row_s = max(seconds, 1e-6) / n_rows
            self._row_s = row_s if self._row_s is None else self._row_s + _SHARE * (row_s - self._row_s)
