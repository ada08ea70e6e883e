"""Beam search: the most likely continuations of a prompt, found step by step among a few of them.

All live beams take one step together. A beam that goes on in two ways is forked: full blocks of the pool are
shared, the last one is copied, and so are recurrent states. Scores and ends are those of Hugging Face's beam
search (`generation/utils.py`): sum of log-probabilities / length ** length_penalty, the end token counted.

Knows ids, blocks and rows of logits; nothing of text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from graphml.errors import WeightsError
from graphml.ir.cells import BLOCK_SIZE, cells_of
from graphml.ir.op import Array, Floats
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.step_plan import Move, Rows, StepPlan
from graphml.runtime.steps.computed_plan import Computed
from graphml.sampling import flaw_of
from graphml.sampling.candidates.candidates import leading
from graphml.sampling.candidates.logprobs import log_sums
from graphml.sampling.chain.next_logits import no_numbers

NEVER = "never"


@dataclass(frozen=True)
class BeamSettings:
    """width: beams; early: when it ends (see `Model.beam_search`); ends: ids that end a text."""

    width: int
    max_tokens: int
    length_penalty: float
    early: bool | str
    ends: frozenset[int]

    def score(self, logprob: float, length: int) -> float:
        """What beams of different lengths are compared by."""
        return float(logprob / max(length, 1) ** self.length_penalty)


@dataclass(frozen=True)
class FoundBeam:
    """A continuation: its ids without an end token, whether one ended it, log-probability and score."""

    ids: tuple[int, ...]
    ended: bool
    logprob: float
    score: float


class Computes(Protocol):
    """A `Runner`."""

    max_chunk: int
    has_cells: bool

    def run(self, plan: StepPlan, read: Callable[[Mapping[str, Array]], None]) -> Computed:
        """Compute a plan; read: gets the outputs."""


def blocks_for(n_prompt: int, settings: BeamSettings) -> int:
    """How many blocks a search takes at most: the prompt's once, each beam its own behind it, and copies."""
    whole = n_prompt // BLOCK_SIZE
    each = -(-(n_prompt + settings.max_tokens) // BLOCK_SIZE) - whole
    return whole + settings.width * (each + 1)


class BeamSearch:
    """A search in blocks of its own pool, with twice as many slots as beams: a fork takes a free one.

    cancelled: whether nobody wants the rest. errors name `path`.
    """

    def __init__(
        self,
        runner: Computes,
        pool: BlockPool,
        settings: BeamSettings,
        path: Path,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._runner, self._pool, self._settings, self._path = runner, pool, settings, path
        self._slots = list(range(2 * settings.width))[::-1]
        self._cancelled = cancelled

    def run(self, ids: Array) -> list[FoundBeam]:
        """The beams that were found, the best first; fewer tokens where it was cancelled."""
        settings, beams = self._settings, list[FoundBeam]()
        first = Sequence(Request(ids), 0)
        first.slot = self._slots.pop()
        rows = self._prompt(first)
        live, scores = [first], np.zeros(1)
        for length in range(1, settings.max_tokens + 1):
            going: list[tuple[int, int, float]] = []  # parent, token, log-probability
            for rank, (parent, token, logprob) in enumerate(self._candidates(rows, scores)):
                if token in settings.ends:
                    if rank < settings.width:
                        tokens = tuple(live[parent].ids[len(ids) :])
                        self._keep(beams, FoundBeam(tokens, True, logprob, settings.score(logprob, length)))
                elif len(going) < settings.width:
                    going.append((parent, token, logprob))
            if not going or self._done(beams, going[0][2], length):
                return beams
            if length == settings.max_tokens or self._cancelled():
                for parent, token, logprob in going:
                    tokens = (*live[parent].ids[len(ids) :], token)
                    self._keep(beams, FoundBeam(tokens, False, logprob, settings.score(logprob, length)))
                return beams
            live, plan = self._forked(live, going)
            scores = np.array([logprob for _, _, logprob in going])
            rows = self._logits(StepPlan(plan))
        return beams

    def _prompt(self, sequence: Sequence) -> Floats:
        """Compute a prompt; the row behind it, float32 [1, n_vocab]."""
        rows: Floats | None = None
        while sequence.n_behind:
            count = min(sequence.n_behind, self._runner.max_chunk)
            self._reserve(sequence, count)
            last = count == sequence.n_behind
            plan = StepPlan((Rows(sequence, sequence.n_computed, count, int(last)),))
            rows = self._logits(plan)
        assert rows is not None
        return rows

    def _logits(self, plan: StepPlan) -> Floats:
        copies = list[Floats]()
        self._runner.run(plan, lambda outputs: copies.append(outputs["logits"][: plan.n_outputs].copy()))
        (logits,) = copies
        for row in logits:
            flaw = flaw_of(row)
            if flaw is not None:
                raise WeightsError(no_numbers(self._path, flaw))
        for rows in plan.rows:
            rows.sequence.n_computed += rows.count
        return logits

    def _candidates(self, rows: Floats, scores: Array) -> Iterator[tuple[int, int, float]]:
        """(beam, token, log-probability) of the best ways to go on, twice as many as beams: half may end."""
        n_vocab, count = rows.shape[1], min(2 * self._settings.width, rows.shape[1])
        tokens = np.stack([leading(row, count) for row in rows])
        sums = scores[:, None] - log_sums(rows)[:, None]
        values = sums + np.take_along_axis(rows, tokens, axis=1)
        flat = (np.arange(len(rows))[:, None] * n_vocab + tokens).reshape(-1)
        order = np.lexsort((flat, -values.reshape(-1)))[: 2 * self._settings.width]
        for at in order.tolist():
            value = float(values.reshape(-1)[at])
            if value > -math.inf:
                yield int(flat[at] // n_vocab), int(flat[at] % n_vocab), value

    def _keep(self, beams: list[FoundBeam], beam: FoundBeam) -> None:
        """Keep the best, as many as there are beams; of equals the first."""
        beams.append(beam)
        beams.sort(key=lambda each: -each.score)
        del beams[self._settings.width :]

    def _done(self, beams: list[FoundBeam], best: float, length: int) -> bool:
        """Whether no live beam, of which the likeliest has `best`, is taken to become one of those kept."""
        settings = self._settings
        if len(beams) < settings.width:
            return False
        if settings.early is True:
            return True
        longest = settings.early == NEVER and settings.length_penalty > 0
        return beams[-1].score >= settings.score(best, settings.max_tokens if longest else length)

    def _forked(
        self, live: list[Sequence], going: list[tuple[int, int, float]]
    ) -> tuple[list[Sequence], tuple[Rows, ...]]:
        """The next beams and their rows. The first way that a beam goes on is in its own blocks."""
        taken: set[int] = set()
        forked: list[Sequence] = []
        rows: list[Rows] = []
        for parent, token, _ in going:
            old = live[parent]
            new, moves, states_of = self._fork(old) if parent in taken else (old, (), None)
            taken.add(parent)
            new.ids = [*old.ids[: old.n_computed], token]
            forked.append(new)
            rows.append(Rows(new, new.n_computed, 1, 1, moves=moves, states_of=states_of))
        for index, beam in enumerate(live):
            if index not in taken:
                self._pool.release(beam.blocks)
                self._slots.append(beam.slot)
        for beam in forked:
            self._reserve(beam, 1)
        return forked, tuple(rows)

    def _fork(self, old: Sequence) -> tuple[Sequence, tuple[Move, ...], int]:
        """A sequence that shares full blocks with another and gets copies of its last one and its states."""
        new, size = copy(old), self._pool.block_size
        count = old.n_computed
        whole = count // size
        self._pool.share(old.blocks[:whole])
        own = self._pool.allocate(1 if count % size else 0)
        assert own is not None  # see `blocks_for`
        new.blocks, new.slot = [*old.blocks[:whole], *own], self._slots.pop()
        if not own or not self._runner.has_cells:
            return new, (), old.slot
        at = np.arange(whole * size, count, dtype=np.int32)
        cells = [cells_of(np.array(beam.blocks, np.int32), at, size) for beam in (old, new)]
        return new, (Move(cells[0], cells[1]),), old.slot

    def _reserve(self, sequence: Sequence, count: int) -> None:
        blocks = self._pool.allocate(sequence.blocks_needed(count, self._pool.block_size))
        assert blocks is not None
        sequence.blocks = sequence.blocks + blocks
