"""Rounds of a bisection of an open model: its steps, the other side's, and a round before int8.

Knows executors and fusions; nothing of how values are judged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from graphml.compiler.compile import Prepared, prepare
from graphml.compiler.options import CompileOptions
from graphml.inspect.bisect import Bisection, bisect
from graphml.inspect.culprits import Rewritten
from graphml.inspect.judging import Judge
from graphml.inspect.observe import Observation, observe
from graphml.inspect.route import FEW, Leg, usual, wide
from graphml.ir.graph import Graph
from graphml.ir.ops.linear import quantize
from graphml.passes.fusion import fusions
from graphml.runtime.executor import Executor

BEFORE = " before int8"  # suffix of the names of the steps of that round


def examine(
    executor: Executor, ids: Sequence[int], options: CompileOptions, judge: Judge
) -> tuple[Observation, Observation, Bisection]:
    """Run A over all boundaries and the judge over the usual steps; returns the bisection.

    The rounding of int8 hides errors of nodes fused with the conversion; so some steps run without fusing it.
    """
    run = observe(executor, ids, options, wide(executor, len(ids)))
    other = observe(judge.executor, ids, judge.options, usual(min(len(ids), FEW + 1)), in_use=False)
    apart, rewritten = _before_int8(run, executor, options), _rewritten(executor, options)
    return run, other, bisect(run, other, judge, apart, rewritten)


def _before_int8(run: Observation, executor: Executor, options: CompileOptions) -> Observation | None:
    """A few steps without the fusions that convert to int8; None if the run has none."""
    names = {f.name for f in fusions().values() if any(quantize in ops for ops in f.ops())}
    used = {one.fusion for step in run.steps for one in step.applied} & names
    if not used:
        return None
    legs = [Leg(leg.name + BEFORE, leg.counts, whole=False) for leg in usual(min(len(run.ids), FEW))]
    return observe(executor, run.ids, options.without(used), legs, in_use=False)


def _rewritten(executor: Executor, options: CompileOptions) -> Rewritten:
    """What the run's passes make of a graph without some fusions."""

    def made(built: Graph, fuse: str, off: Collection[str]) -> Prepared:
        chosen = CompileOptions(fuse, place=options.place).without(off)
        return prepare(built, executor.backend, executor.device, chosen)

    return made
