"""Runs all cases on a backend: program by program, and case by case if something is wrong.

Knows backends by their contract alone; prints nothing.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from graphml.backend import Backend, Device, Progress, no_progress
from graphml.conformance.cases import PRODUCTS, Case, cases, multiplies
from graphml.conformance.guards import inputs_in_arena
from graphml.conformance.trial import Trial, TrialRun, build, symbols_agree
from graphml.conformance.verdict import Verdict, limit_of
from graphml.ir.ops.leaf import LEAVES
from graphml.ir.own_op import OwnOp
from graphml.passes.fusion import all_ops
from graphml.passes.pipeline import has_kernels

NATIVE, NUMPY, SOME, VIEW, APART = "native", "NumPy", "some native", "view", "taken apart"


@dataclass(frozen=True)
class Support:
    """The way in which an op with a format is run.

    how: `native`; `NumPy`, between the kernels; `some native`, the rest in NumPy; `view`, which computes
    nothing; `taken apart`, a fused op that the backend never receives. reasons: why not native, each once.
    """

    op: str
    format: str
    how: str
    reasons: tuple[str, ...] = ()


def support(backend: Backend, some: Sequence[Case]) -> list[Support]:
    """One entry for each op and format of the cases, and for each fused op without a kernel."""
    supports = []
    for (op, form), same in groupby(sorted(some, key=_key), key=_key):
        supports.append(_of(backend, op, form, list(same)))
    return supports


def apart(backend: Backend) -> list[Support]:
    """The fused ops that the backend has no kernels for; such a graph is not fused."""
    return [
        Support(name, "f32", APART)
        for name, op in sorted(all_ops().items())
        if op not in LEAVES and op.decompose is not None and not has_kernels(backend, op)
    ]


def _key(case: Case) -> tuple[str, str]:
    return case.op.name, case.format


def _of(backend: Backend, op: str, form: str, same: Sequence[Case]) -> Support:
    if same[0].op.view:
        return Support(op, form, VIEW)
    asked = [
        backend.refuses(build([case.at(tokens)])[1][0].node) for case in same for tokens in sizes_of(case)
    ]
    reasons = tuple(dict.fromkeys(reason for reason in asked if reason is not None))
    how = NATIVE if not reasons else NUMPY if None not in asked else SOME
    return Support(op, form, how, reasons)


MOST_TOGETHER = 32  # cases of a program
FEW, ONE, MANY = 5, 1, 70
# At most so many tokens -> the steps that a program is run with: all of them, fewer, one.
TILES = 257
RUNS = {
    FEW: (TrialRun(FEW), TrialRun(3), TrialRun(1), TrialRun(FEW, "NaN"), TrialRun(FEW, "infinity")),
    ONE: (TrialRun(ONE), TrialRun(ONE, "NaN"), TrialRun(ONE, "infinity")),
    MANY: (
        TrialRun(MANY),
        TrialRun(33),
        TrialRun(MANY, "NaN"),
    ),  # of products and attention, with other kernels
    TILES: (  # of ops of one's own: around the sizes that tiles have
        *map(TrialRun, (257, 256, 255, 129, 128, 127, 65, 64, 63, 33, 32, 31, 17, 16, 15, 9, 8, 7, 4, 2)),
        TrialRun(TILES, "NaN"),
    ),
}


def chosen(backend: Backend, pattern: str = "*", formats: Sequence[str] = ()) -> list[Case]:
    """The cases of ops whose names match a pattern, of some formats or of all."""
    return [
        case
        for case in cases(backend, lambda name: matches(name, pattern))
        if not formats or case.format in formats
    ]


def matches(op: str, pattern: str) -> bool:
    """Whether a name matches one of the comma-separated patterns."""
    return any(fnmatch.fnmatchcase(op, name.strip()) for name in pattern.split(","))


def windows(some: Sequence[Case]) -> list[tuple[Case, ...]]:
    """Cases by neighbouring ops: all cases of as many ops as fit into a program of `MOST_TOGETHER`."""
    batches: list[list[Case]] = []
    for _, of_op in groupby(some, key=lambda case: case.op.name):
        now = list(of_op)
        if batches and len(batches[-1]) + len(now) <= MOST_TOGETHER and symbols_agree([*batches[-1], *now]):
            batches[-1] += now
        else:
            batches.append(now)
    return list(map(tuple, batches))


def groups(some: Sequence[Case], sizes: Sequence[int] = tuple(RUNS)) -> list[tuple[Case, ...]]:
    """Groups of cases that share a program: as many as possible, at each number of tokens."""
    batches: list[tuple[Case, ...]] = []
    for tokens in sizes:
        now: list[Case] = []
        for case in (case.at(tokens) for case in some if tokens in sizes_of(case)):
            if now and (len(now) == MOST_TOGETHER or not symbols_agree([*now, case])):
                batches.append(tuple(now))
                now = []
            now.append(case)
        if now:
            batches.append(tuple(now))
    return batches


def sizes_of(case: Case) -> tuple[int, ...]:
    """The sizes of `RUNS` that make a difference to a case."""
    if "T" not in case.symbols or case.inplace >= 0 or case.through:
        return (FEW,)
    if isinstance(case.op, OwnOp):
        return (FEW, ONE, TILES)
    tiled = case.op.family == "attention" or case.op.name in PRODUCTS or multiplies(case.op)
    return (FEW, ONE, MANY) if tiled else (FEW, ONE)


def check(
    backend: Backend,
    device: Device,
    some: Sequence[Case],
    limits: str = "graphml",
    progress: Progress = no_progress,
    sizes: Sequence[int] = tuple(RUNS),
    seed: int = 0,
) -> Iterator[Verdict]:
    """The verdict on each case at each number of tokens, op by op.

    sizes: the most tokens of a step, some of `RUNS`. seed: of all values, which beside it follow from the
    case alone, whatever is tested with it.
    """
    todo = windows(some)
    in_arena = inputs_in_arena(device)
    for i, window in enumerate(todo):
        progress("testing", i, len(todo))
        verdicts = [
            verdict
            for group in groups(window, sizes)
            for verdict in _check_group(backend, device, group, limits, in_arena, seed)
        ]
        yield from sorted(verdicts, key=lambda verdict: verdict.op)
    progress("testing", len(todo), len(todo))


def _check_group(
    backend: Backend, device: Device, group: Sequence[Case], limits: str, in_arena: bool, seed: int
) -> list[Verdict]:
    """The verdicts on cases that share a program; if one is wrong, of each case alone.

    A write out of bounds corrupts the results of others. Verdicts mark cases that are wrong only with others.
    """
    together = _tried(backend, device, group, limits, in_arena, seed)
    if len(group) == 1 or not any(verdict.failed for verdict in together):
        return together
    alone = [verdict for case in group for verdict in _tried(backend, device, [case], limits, in_arena, seed)]
    return alone if any(verdict.failed for verdict in alone) else together


def _tried(
    backend: Backend, device: Device, group: Sequence[Case], limits: str, in_arena: bool, seed: int
) -> list[Verdict]:
    """The worst verdict of all runs on each case; third-party code may raise anything."""
    tokens = max(case.symbols.get("T", 0) for case in group) or FEW
    worst: list[Verdict] = []
    runs = [replace(run, seed=seed) for run in RUNS[tokens]]
    run = runs[0]
    try:
        trial = Trial(group, backend, device, limits, in_arena, seed)
        for run in runs:
            now = trial.run(run)
            worst = [_worse(*pair) for pair in zip(worst, now, strict=True)] if worst else now
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        limit = limit_of([], limits)
        return [
            Verdict(
                tried.name, tried.op.name, tried.format, tried.call, f"{run}", float("inf"), limit, problem
            )
            for tried in group
        ]
    return worst


def _worse(a: Verdict, b: Verdict) -> Verdict:
    """The one that failed, the first of two; else that with the larger error."""
    if a.failed or b.failed:
        return a if a.failed else b
    return b if b.nmse > a.nmse else a
