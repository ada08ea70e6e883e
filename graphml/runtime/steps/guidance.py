"""Classifier-free guidance: a sequence of a prompt and one of a negative prompt choose tokens together.

Each computes its own rows, in the same steps where it can; a row waits for the other's. The token is sampled
from log_softmax(negative) + scale * (log_softmax(prompt) - log_softmax(negative)) (Sanchez et al. 2023,
arXiv:2306.17806) and appended to both. Knows sequences and rows; nothing of steps or blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import numpy as np

from graphml.ir.op import Floats
from graphml.runtime.blocks.sequence import Sequence
from graphml.sampling import flaw_of
from graphml.sampling.candidates.logprobs import log_sums


class WaitingRow(Enum):
    """A row that waits for that of the other sequence."""

    WAITS = "waits"


class GuidancePair:
    """What two sequences share. leader: of the prompt, whose params, state and random numbers count."""

    def __init__(self, leader: Sequence, negative: Sequence, scale: float) -> None:
        self.leader, self.negative, self.scale = leader, negative, scale
        self._row: Floats | None = None
        self._of: Sequence | None = None
        leader.guidance = negative.guidance = self

    def holds_row_of(self, sequence: Sequence) -> bool:
        """Whether a row of this sequence waits for one of the other."""
        return self._of is sequence

    def combined(self, sequence: Sequence, row: Floats) -> Floats | None:
        """The row to sample from, float32 [n_vocab]; None where this one waits for the other's.

        A row that no token can be chosen by is what comes out: its flaw is found there.
        """
        if self._row is None or self._of is sequence:
            self._row, self._of = row.copy(), sequence
            return None
        other, self._row, self._of = self._row, None, None
        prompt, negative = (row, other) if sequence is self.leader else (other, row)
        flawed = next((logits for logits in (prompt, negative) if flaw_of(logits) is not None), None)
        if flawed is not None:
            return flawed
        rows = np.stack([prompt, negative])
        rows -= log_sums(rows)[:, None].astype(np.float32)
        guided: Floats = rows[1] + np.float32(self.scale) * (rows[0] - rows[1])
        guided[np.isneginf(rows[0])] = -np.inf  # and what the negative prompt forbids alone stays as it is
        only = np.isneginf(rows[1]) & ~np.isneginf(rows[0])
        guided[only] = rows[0][only]
        return guided

    def append(self, token: int) -> None:
        """The token of both was chosen; the leader has it already."""
        self.negative.ids.append(token)


def leader_of(sequence: Sequence) -> Sequence:
    """The sequence whose tokens are delivered."""
    return sequence if sequence.guidance is None else sequence.guidance.leader


def waits_for_other(sequence: Sequence) -> bool:
    """Whether it has nothing to compute before the other sequence has."""
    return sequence.guidance is not None and sequence.guidance.holds_row_of(sequence)


def newest_idle(running: Iterable[Sequence], waiting: Iterable[Sequence]) -> Sequence | None:
    """A running sequence that keeps those it waits for from running, where nothing else runs; or None."""
    if all(map(waits_for_other, waiting)):
        return None
    return max(filter(waits_for_other, running), key=lambda sequence: sequence.order, default=None)
