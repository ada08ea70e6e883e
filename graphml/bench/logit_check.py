"""Whether sides compute the same: their logits beside those of the reference, so that no wrong one wins.

A prompt and some decoded tokens, the same random ones for every side. The error is the squared difference in
proportion to the logits' variance, as softmax ignores what they have in common. Weights and activations in
blocks of a few bits change a logit visibly: 0.01 to 0.03 of random tokens are usual, a fault makes 1 or more.
Knows arrays; nothing of processes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

N_PROMPT, N_DECODED = 8, 4
LIMIT = 0.1
RIGHT, WRONG, JUDGE = "ok", "WRONG", "reference"

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class LogitCheck:
    """What was found of a side. verdict: one of the words above; "": not checked. nmse: -1: not known."""

    verdict: str = ""
    nmse: float = -1.0


def tokens(n_vocab: int) -> list[int]:
    """The ids that every side evaluates: a prompt of `N_PROMPT`, then one after the other."""
    ids: list[int] = np.random.default_rng(0).integers(0, n_vocab, N_PROMPT + N_DECODED).tolist()
    return ids


def checked(got: Logits, wanted: Logits) -> LogitCheck:
    """The verdict on logits of a row for the prompt and one for each decoded token."""
    if got.shape != wanted.shape or not np.isfinite(got).all():
        return LogitCheck(WRONG)
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    a, b = a - a.mean(-1, keepdims=True), b - b.mean(-1, keepdims=True)
    energy = (b * b).sum(-1)
    if not energy.all():
        return LogitCheck(RIGHT if np.array_equal(a, b) else WRONG)
    worst = float((((a - b) ** 2).sum(-1) / energy).max())
    return LogitCheck(WRONG if worst > LIMIT else RIGHT, worst)
