"""Drafts: who drafts for a sequence, how often that is right, and how many rows drafts get in a step.

A draft is `k` ids that a sequence may continue with; they are computed behind its latest id as `k` more rows
of the same step. Tokens are sampled at each row as without a draft, as long as they are the drafted ones, so
that the output is the same (docs/decisions/0051). Knows ids, rows and seconds; nothing of models or text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from graphml.sampling.ngram_lookup import NgramLookup
from graphml.sampling.structured.matcher import Matcher

DRAFT_ROWS = 16
"""Rows of a step with drafts, of all its sequences together. A product of so many rows gives each the bits
of a row alone, and costs little more than it (docs/decisions/0041); beyond, neither is so."""
MOST_AGAIN = 8
"""Rows that recurrent states read again beside a draft; behind more, a step has no draft."""
LEAST_PROBABILITY = 0.4
"""A model's draft ends where its most likely token is less likely."""
_MEMORY = 0.8  # what an earlier draft counts beside the next one
_SURE = 6  # ids in common from which on an n-gram is another kind of evidence than a shorter one
_STALE = 256  # steps after which a time that was not measured again is forgotten
_ROW_SHARE = 0.12  # of a step's time that a row more takes, where that was not measured
_LEAST_SHARE = 0.05  # of a step's time that each row takes at least, for steps that something has disturbed
_LEAST_GAIN = 1.05  # drafts that are expected to gain less are left out
_MOST_SKIPPED = 64  # proposals of a source that is seldom right which are left out


@dataclass(frozen=True)
class Proposal:
    """Ids that may follow. kind: of evidence; kinds differ in how often they are right."""

    ids: list[int]
    kind: str = ""


class Drafter(Protocol):
    """What drafts for one sequence."""

    costs_time: bool
    """Whether a proposal takes a model's time, so that those that are of no use are left out."""

    def propose(self, ids: Sequence[int], count: int) -> Proposal:
        """Up to `count` ids that may follow these."""

    def close(self) -> None:
        """No proposal is wanted any more."""


@runtime_checkable
class ReadsHidden(Protocol):
    """A drafter that goes on from what the model computes of a sequence."""

    def saw(self, start: int, rows: NDArray[np.float32]) -> None:
        """The hidden rows of the sequence's tokens from `start` on; good until it returns."""


@runtime_checkable
class ReadsCells(Protocol):
    """A drafter that attends to what the model keeps of a sequence."""

    def reads(self, cells: Any) -> None:
        """They are in these `runtime.steps.sequence_cells` from now on."""


def likeliest(row: NDArray[np.float32], confidence: float | None = None) -> int | None:
    """The most likely of a row of logits; None where the model is not sure of it.

    confidence: that it is right; None: the probability by the row.
    """
    best = int(np.argmax(row))
    sure = 1 / float(np.exp(row - row[best]).sum()) if confidence is None else confidence
    return best if sure >= LEAST_PROBABILITY else None


def greedy_draft(
    logits: NDArray[np.float32], count: int, step: Callable[[int], NDArray[np.float32]], n_vocab: int | None
) -> list[int]:
    """The most likely tokens of a model, up to `count`, as long as it is sure of them.

    logits: of the first of them; step: of the one behind an id; n_vocab: larger ids are no tokens.
    """
    draft = list[int]()
    while True:
        best = likeliest(logits[:n_vocab])
        if best is None:
            return draft
        draft.append(best)
        if len(draft) == count:
            return draft
        logits = step(best)


def n_right(draft: Sequence[int], came: Sequence[object]) -> int:
    """How many of a draft's ids are what came in its place, up to the first that is not.

    A draft goes on being used as long as all that came is right: its next row is of what follows that.
    """
    wrong = (i for i, (drafted, id) in enumerate(zip(draft, came, strict=False)) if drafted != id)
    return next(wrong, min(len(draft), len(came)))


class NgramDrafter:
    """Drafts from the sequence's own ids."""

    costs_time = False

    def __init__(self) -> None:
        self._lookup = NgramLookup()

    def propose(self, ids: Sequence[int], count: int) -> Proposal:
        """See `Drafter`."""
        draft, length = self._lookup.find(ids, count)
        return Proposal(draft, "long" if length >= _SURE else "short")

    def close(self) -> None:
        """See `Drafter`."""


_PRIOR = {"long": (3.0, 0.5), "short": (1.0, 2.0), "": (2.0, 1.0)}
"""Drafted ids that were right, and drafts that went wrong, before there were any."""


@dataclass
class Drafts:
    """The drafts of one sequence: their source, its limits, and how often it was right so far.

    n_max, n_min: most ids of a draft; fewer than n_min are not drafted. n_drafted, n_accepted: ids so far
    that were computed as drafts, and those of them that were sampled.
    """

    drafter: Drafter
    n_max: int
    n_min: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    _counts: dict[str, tuple[float, float]] = field(default_factory=lambda: dict(_PRIOR))
    _latest: Proposal = field(default_factory=lambda: Proposal([]))
    _at: int = 0  # how many ids there were
    _skipped: int = 0
    _skip: int = 0

    def propose(self, ids: Sequence[int], count: int, matcher: Matcher | None = None) -> list[int]:
        """A draft of at most `count` ids; matcher: at the end of the ids, cuts what it does not allow."""
        self._learn(ids)
        self._latest, self._at = Proposal([]), len(ids)
        most = min(count, self.n_max)
        if most < max(self.n_min, 1):
            return []
        if self.drafter.costs_time and self._skipped < self._skip:
            self._skipped += 1
            return []
        self._skipped = 0
        self._latest = self.drafter.propose(ids, most)
        return _allowed(self._latest.ids, matcher)

    @property
    def reads_hidden(self) -> bool:
        """Whether `saw` is wanted of every step."""
        return isinstance(self.drafter, ReadsHidden)

    def saw(self, start: int, rows: NDArray[np.float32]) -> None:
        """See `ReadsHidden`; nothing for other drafters."""
        if isinstance(self.drafter, ReadsHidden):
            self.drafter.saw(start, rows)

    def reads(self, cells: Any) -> None:
        """See `ReadsCells`; nothing for other drafters."""
        if isinstance(self.drafter, ReadsCells):
            self.drafter.reads(cells)

    @property
    def rate(self) -> float:
        """The expected share of right ones among the ids of the latest proposal."""
        right, wrong = self._counts[self._latest.kind]
        return right / (right + wrong)

    def used(self, count: int) -> None:
        """So many ids of the latest proposal are drafted."""
        if self.drafter.costs_time:
            self._skip = 0 if count else min(_MOST_SKIPPED, 2 * self._skip + 1)

    def counted(self, n_drafted: int, n_accepted: int) -> None:
        """So many ids were computed as drafts, and so many of them sampled."""
        self.n_drafted += n_drafted
        self.n_accepted += n_accepted

    def _learn(self, ids: Sequence[int]) -> None:
        """Compare the latest proposal with what came, whether it was drafted or not."""
        came = ids[self._at :]
        n_same = n_right(self._latest.ids, came)
        if not self._latest.ids or not came:
            return
        failed = n_same < min(len(self._latest.ids), len(came))
        right, wrong = self._counts[self._latest.kind]
        self._counts[self._latest.kind] = _MEMORY * right + n_same, _MEMORY * wrong + failed


def _allowed(ids: list[int], matcher: Matcher | None) -> list[int]:
    if matcher is None:
        return ids
    trial = matcher.copy()
    for i, id in enumerate(ids):
        if not trial.allows(id):
            return ids[:i]
        if id in matcher.eog:
            return ids[: i + 1]
        trial.accept(id)
    return ids


class StepTimes:
    """Seconds of steps by their number of rows, as measured; others are estimated from those beside them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, int]] = {}  # rows -> seconds, number of the step
        self._n = 0

    def measured(self, n_rows: int, seconds: float) -> None:
        """A step of so many rows took so long. A shorter time counts more: what disturbs makes it longer."""
        self._n += 1
        before, _ = self._known.get(n_rows, (seconds, 0))
        share = 0.5 if seconds < before else 0.1
        self._known[n_rows] = before + share * (seconds - before), self._n

    def of(self, n_rows: int) -> float:
        """The expected seconds of a step of so many rows; 1.0 for one row where nothing is known."""
        known = {rows: s for rows, (s, n) in self._known.items() if self._n - n < _STALE}
        more = [s / (1 + _LEAST_SHARE * (rows - n_rows)) for rows, s in known.items() if rows > n_rows]
        return min(self._estimated(n_rows, known), *more) if more else self._estimated(n_rows, known)

    def _estimated(self, n_rows: int, known: dict[int, float]) -> float:
        if n_rows in known:
            return known[n_rows]
        below = max((rows for rows in known if rows < n_rows), default=0)
        above = min((rows for rows in known if rows > n_rows), default=0)
        if below and above:
            return known[below] + (known[above] - known[below]) * (n_rows - below) / (above - below)
        if below:
            return known[below] * (1 + _ROW_SHARE * n_rows) / (1 + _ROW_SHARE * below)
        if above:
            return known[above] * (1 + _ROW_SHARE * n_rows) / (1 + _ROW_SHARE * above)
        return 1 + _ROW_SHARE * (n_rows - 1)


def draft_lengths(
    n_rows: int,
    drafts: Sequence[tuple[int, float]],
    seconds: Callable[[int], float],
    most: int = DRAFT_ROWS,
    n_again: int | None = None,
) -> list[int]:
    """How many ids of each draft are computed, so that the tokens expected in a second are most.

    n_rows: rows of the step without drafts, each of which gives a token. drafts: of each, how many ids there
    are, and the share of right ones. seconds: of a step of some number of rows. An id counts only where all
    before it are right (Leviathan et al. 2023, arXiv:2211.17192), so the next row goes where that is
    most likely. At most `most` rows in all. n_again: rows beside those, which recurrent states read again; a
    draft that is wrong costs more of them, in the step after. None: there are no such states.
    """
    lengths, best = [0] * len(drafts), [0] * len(drafts)
    gains = [rate for _, rate in drafts]
    tokens, first = float(n_rows), n_rows + (n_again or 0)
    speed, lost = _LEAST_GAIN * tokens / seconds(first), 0.0
    a_row = 0.0 if n_again is None else seconds(first + 1) - seconds(first)
    for rows in range(first + 1, most + 1):
        open_ = [i for i, (count, _) in enumerate(drafts) if lengths[i] < count]
        if not open_:
            break
        chosen = max(open_, key=gains.__getitem__)
        rate = drafts[chosen][1]
        lengths[chosen] += 1
        tokens += gains[chosen]
        lost += a_row * lengths[chosen] * gains[chosen] * (1 - rate) / max(rate, 1e-9)
        gains[chosen] *= rate
        if tokens / (seconds(rows) + lost) > speed:
            speed, best = tokens / (seconds(rows) + lost), list(lengths)
    return best


def worth_rows(
    proposed: Sequence[tuple[Drafts, list[int]]],
    times: StepTimes,
    most: int,
    n_again: int | None,
    n_rows: int = 1,
) -> list[list[int]]:
    """Of each source's proposal the ids that the next step computes, as of `draft_lengths`."""
    if not any(ids for _, ids in proposed):
        return [[] for _ in proposed]
    offers = [(len(ids), drafts.rate) for drafts, ids in proposed]
    lengths = draft_lengths(n_rows, offers, times.of, most, n_again)
    worth = list[list[int]]()
    for (drafts, ids), count in zip(proposed, lengths, strict=True):
        drafts.used(count)
        worth.append(ids[:count] if count >= drafts.n_min else [])
    return worth
