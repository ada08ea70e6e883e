"""Searches two programs' values for the first wrong part, and the mistake that explains it.

Every edit of the catalogue is tried on the first wrong part; one that makes it agree is kept, and the next
wrong part is searched with it. Knows records, runs and the catalogue; nothing of how either side was run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from graphml.authoring.mistakes import CATALOGUE, EditSource, Mistake, Try, applied
from graphml.authoring.verify.record import PeerRecord
from graphml.authoring.verify.runs import RecordRuns, part_before
from graphml.authoring.verify.stages import (
    InSteps,
    LogitDifferences,
    ModelStage,
    StageRow,
    compare_logits,
    given,
    in_steps,
    own_error,
    rows,
    stages,
    wrong_parts,
)
from graphml.errors import GraphmlError
from graphml.inspect.bisect.coverage import windows_of
from graphml.ir.graph import Graph
from graphml.ir.op import Array
from graphml.runtime.programs.executor import Executor

MOST_CAUSES = 6  # mistakes of one model that are searched, one after the other
MOST_RIVALS = 6  # edits that make the part agree and are then compared with each other
PAIRS_S = 60.0  # time limit of the search for pairs of mistakes, if no single one is enough
PAIRS_OF_PART_S = 20.0  # and in one part
EXACT = 1e-6  # the NMSE that a part of a model in float32 may have
APART, ROUNDING = 1e5, 1e-15  # how much worse than the best part, or than rounding, is told
NEARER = 10.0  # factor by which an edit must reduce the error to be reported as the nearest

Report = Callable[[str, int, int], None]
_TRIED_WITH = (ArithmeticError, LookupError, ValueError, TypeError, GraphmlError)  # an edit that does not fit


@dataclass(frozen=True)
class Cause:
    """A mistake that explains the first wrong part, and its correction.

    layers: the corrected ones; None: all. before, after: the part's NMSE. rivals: names of other mistakes
    with equally good edits. enough: whether the part then agrees; else the error is only reduced.
    """

    mistake: Mistake
    says: str
    at: str
    layers: tuple[int, ...] | None
    before: float
    after: float
    rivals: tuple[str, ...] = ()
    enough: bool = True


@dataclass(frozen=True)
class SearchResult:
    """The result. rows: of the unedited model; first: its first wrong part; causes: in the order found.

    logits: of the unedited model; mended: with all causes corrected, None if there are none. unused:
    tensors that the model does not use. steps: the unedited model against itself, the text cut into steps.
    """

    rows: list[StageRow]
    logits: LogitDifferences
    first: StageRow | None
    causes: list[Cause]
    mended: LogitDifferences | None
    unused: list[str]
    limit: float
    steps: list[InSteps]
    unreached: tuple[int, ...] = ()  # windows and chunks that are no shorter than the text

    @property
    def outliers(self) -> list[StageRow]:
        """Parts that agree, but far worse than the best one: more than rounding of float32 does."""
        if self.limit > EXACT:
            return []
        best = min((row.own for row in self.rows), default=0.0)
        return [row for row in self.rows if APART * max(best, ROUNDING) < row.own <= self.limit]

    @property
    def agrees(self) -> bool:
        """Whether every part is right, and a text at once is the text in steps."""
        return self.first is None and all(way.agrees for way in self.steps)


def verify(
    executor: Executor, record: PeerRecord, limit: float, progress: Report = lambda what, done, total: None
) -> SearchResult:
    """Compare an open model with a record; limit: the NMSE that a part may have by itself."""
    runs = RecordRuns(executor, record.ids)
    cut = stages(runs.places, record)
    measured, logits = rows(runs, runs.graph, cut, record, limit, keep=True)
    before = compare_logits(logits, record.logits)
    first = _first(measured, limit)
    model = EditSource(runs.graph, executor.file.metadata, executor.file.tensors, runs.unused)
    search = _Search(runs, model, cut, record, limit, progress)
    causes, graph = search.causes(measured) if first is not None else ([], runs.graph)
    mended = None
    if causes:
        mended = compare_logits(rows(runs, graph, cut, record, limit)[1], record.logits)
    steps = in_steps(executor, record.ids)
    windows = tuple(sorted(size for size in windows_of(runs.graph) if size >= len(record.ids)))
    return SearchResult(measured, before, first, causes, mended, list(runs.unused), limit, steps, windows)


def _first(measured: Sequence[StageRow], limit: float) -> StageRow | None:
    return next((row for row in measured if row.own > limit), None)


def _wrong(measured: Sequence[StageRow], limit: float) -> int:
    return sum(row.own > limit for row in measured)


def _edited(graph: Graph, attempt: Try, layers: Sequence[int] | None = None) -> Graph | None:
    """The graph with an edit; None if it changes nothing or does not fit."""
    try:
        return applied(graph, attempt.change, layers)
    except _TRIED_WITH:
        return None


@dataclass
class _Search:
    runs: RecordRuns
    model: EditSource
    cut: list[ModelStage]
    record: PeerRecord
    limit: float
    progress: Report

    def causes(self, measured: list[StageRow]) -> tuple[list[Cause], Graph]:
        """The mistakes, and the graph with all of them corrected."""
        graph, causes = self.runs.graph, list[Cause]()
        while len(causes) < MOST_CAUSES:
            row = _first(measured, self.limit)
            if row is None:
                break
            cause, mended = self._one(graph, row, measured)
            if cause is None:
                break
            causes.append(cause)
            if mended is None:
                break
            before, graph = _wrong(measured, self.limit), mended
            measured = rows(self.runs, graph, self.cut, self.record, self.limit)[0]
            if _wrong(measured, self.limit) >= before:  # the correction of one part breaks another
                break
        return causes, graph

    def _one(
        self, graph: Graph, row: StageRow, measured: list[StageRow]
    ) -> tuple[Cause | None, Graph | None]:
        """The mistake of one part, and the graph without it."""
        tries = list(self._tries(graph))
        rivals: list[tuple[Mistake, Try, float]] = []
        nearest: tuple[float, Mistake, Try] | None = None
        reaching: list[tuple[float, Mistake, Try]] = []
        self.runs.values(graph, [row.stage.end], self._given(row.stage), keep=True)  # edits change few nodes
        part = part_before(graph, row.stage.end)
        for i, (mistake, attempt) in enumerate(tries):
            self.progress("trying", i, len(tries))
            left = self._error(part, attempt, row.stage)
            if left < row.own / NEARER and _edited(graph, attempt) is None:  # it does not fit the other parts
                left = float("inf")
            if left <= self.limit and left < row.own / NEARER:
                rivals.append((mistake, attempt, left))
            elif nearest is None or left < nearest[0]:
                nearest = left, mistake, attempt
            if left not in (float("inf"), row.own):  # it changes what the part computes
                reaching.append((left, mistake, attempt))
        self.progress("trying", len(tries), len(tries))
        best = self._best(graph, row, rivals)
        if best is not None:
            return best
        pair = None if rivals else self._pair(graph, part, row, reaching)
        if pair is not None:
            return pair
        if nearest is not None and nearest[0] < row.own / NEARER:
            left, mistake, attempt = nearest
            return Cause(mistake, attempt.says, row.stage.name, None, row.own, left, enough=False), None
        return None, None

    def _tries(self, graph: Graph) -> Iterator[tuple[Mistake, Try]]:
        unused = sorted(set(self.model.tensors) - set(graph.leaves("weight")))
        model = replace(self.model, graph=graph, unused=unused)
        for mistake in CATALOGUE:
            for attempt in mistake.tries(model):
                yield mistake, attempt

    def _given(self, stage: ModelStage) -> dict[str, Array]:
        """The other program's value of the node at the start of a stage."""
        return {stage.start: given(self.cut, self.record)[stage.start]} if stage.start else {}

    def _error(self, graph: Graph, attempt: Try, stage: ModelStage) -> float:
        """The part's NMSE with an edit; infinite if it changes nothing or does not fit."""
        edited = _edited(graph, attempt)
        return float("inf") if edited is None else self._error_of(edited, stage)

    def _error_of(self, edited: Graph, stage: ModelStage) -> float:
        try:
            start = self._given(stage)
            got = self.runs.values(edited, [stage.end], start).get(stage.end)
            return own_error(stage, got, self.record, start.get(stage.start or ""))
        except _TRIED_WITH:
            return float("inf")

    def _judged(self, edited: Graph, row: StageRow) -> tuple[int, int] | None:
        """How many parts are wrong with an edit, in total and inside this one; None if it fits not all."""
        try:
            after = rows(self.runs, edited, self.cut, self.record, self.limit)[0]
            inside = wrong_parts(self.runs, edited, row.stage, self.cut, self.record, self.limit)
        except _TRIED_WITH:
            return None
        return _wrong(after, self.limit), inside

    def _best(
        self, graph: Graph, row: StageRow, rivals: list[tuple[Mistake, Try, float]]
    ) -> tuple[Cause, Graph] | None:
        """The edit that makes the part agree and leaves the fewest parts wrong in total; None without one."""
        kinds: dict[str, list[tuple[Mistake, Try, float]]] = {}
        for rival in rivals:
            kinds.setdefault(rival[0].name, []).append(rival)
        shown = [rival for several in kinds.values() for rival in several[:3]][:MOST_RIVALS]
        judged = []
        for i, (mistake, attempt, left) in enumerate(shown):
            scopes: list[tuple[int, ...] | None] = [None]
            if row.stage.layer is not None:
                scopes.append((row.stage.layer,))
            for scope in scopes:
                edited = _edited(graph, attempt, scope)
                wrong_parts_left = None if edited is None else self._judged(edited, row)
                if edited is None or wrong_parts_left is None:
                    continue
                judged.append(
                    ((*wrong_parts_left, scope is not None, i), mistake, attempt, left, scope, edited)
                )
        if not judged:
            return None
        judged.sort(key=lambda entry: entry[0])
        (wrong, inside, _, _), mistake, attempt, left, scope, edited = judged[0]
        alike = [
            other.name
            for (w, n, *_), other, *_ in judged
            if (w, n) == (wrong, inside) and other is not mistake
        ]
        cause = Cause(
            mistake, attempt.says, row.stage.name, scope, row.own, left, tuple(dict.fromkeys(alike))
        )
        return cause, edited

    def _pair(
        self, graph: Graph, part: Graph, row: StageRow, reaching: list[tuple[float, Mistake, Try]]
    ) -> tuple[Cause, Graph] | None:
        """Two mistakes together, within the time limit, those first that alone leave the smallest errors."""
        until = time.monotonic() + (PAIRS_S if row.stage.name == "model" else PAIRS_OF_PART_S)
        tries = sorted(reaching, key=lambda entry: entry[0])
        pairs = [(i + j, a, b) for (i, a), (j, b) in combinations(enumerate(tries), 2) if a[1] is not b[1]]
        pairs.sort(key=lambda pair: pair[0])
        for i, (_, (_, first, attempt), (_, second, other)) in enumerate(pairs):
            self.progress("trying", i, len(pairs))
            if time.monotonic() > until:
                break
            edited = _edited(part, attempt)
            both = None if edited is None else _edited(edited, other)
            left = float("inf") if both is None else self._error_of(both, row.stage)
            if left > self.limit:
                continue
            edited = _edited(graph, attempt)
            both = None if edited is None else _edited(edited, other)
            if both is None or self._judged(both, row) is None:  # it does not fit the other parts
                continue
            joined = Mistake(f"{first.name} and {second.name}", f"{first.says}; {second.says}", first.tries)
            return Cause(joined, f"{attempt.says}; {other.says}", row.stage.name, None, row.own, left), both
        self.progress("trying", len(pairs), len(pairs))
        return None
