"""Whether a model gives the same logits for a text at once, in uneven steps and token by token.

A state that two ops share, or one that a step of several tokens reads as it was before them, is right for
whole prompts and wrong in use: a comparison of whole prompts cannot tell. Knows an open model; no record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from graphml.inspect.compare.tolerances import nmse
from graphml.ir.op import Array
from graphml.runtime.programs.executor import Executor
from graphml.runtime.sessions.pinned import Room

UNEVEN = (1, 3, 2)
MOST = 12  # tokens that are tried: each is a step of the whole model in NumPy
LIMIT = 1e-6  # NMSE, of float32 numbers that are added in another order


@dataclass(frozen=True)
class InSteps:
    """A way of cutting a text: the worst token's NMSE to the same text at once, and the token."""

    way: str
    nmse: float
    token: int

    @property
    def agrees(self) -> bool:
        """Whether rounding explains the difference."""
        return self.nmse <= LIMIT


def in_steps(executor: Executor, ids: tuple[int, ...]) -> list[InSteps]:
    """Each way of cutting the text; none for a model whose steps are whole texts."""
    if executor.encodes or not executor.architecture.causal:
        return []
    ids = ids[:MOST]
    whole = _logits(executor, ids, [len(ids)])
    ways = {"uneven steps": list(_uneven(len(ids))), "one token a step": [1] * len(ids)}
    results = []
    for way, counts in ways.items():
        logits = _logits(executor, ids, counts)
        errors = [nmse(mine, right) for mine, right in zip(logits, whole, strict=True)]
        worst = int(np.argmax(errors))
        results.append(InSteps(way, float(errors[worst]), worst))
    return results


def _uneven(count: int) -> Iterator[int]:
    for step in cycle(UNEVEN):
        if count <= 0:
            return
        yield min(step, count)
        count -= step


def _logits(executor: Executor, ids: tuple[int, ...], counts: list[int]) -> Array:
    """The logits of every token, [tokens, n_vocab]."""
    room = Room(executor, executor.options, len(ids))
    sequence, at, rows = room.pinned(0), 0, []
    for count in counts:
        for begin in range(at, at + count, executor.n_batch):
            part = np.asarray(ids[begin : min(begin + executor.n_batch, at + count)], np.int32)
            rows.append(room.step({sequence: part}, all_logits=True))
        at += count
    return np.concatenate(rows)
