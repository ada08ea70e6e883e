"""Ops of one's own on several backends: the suite on each number of threads, and times beside memory's.

Knows backends by their contract alone; prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from graphml.backend import Backend, NamedDevice, Progress, RowCheckingDevice, no_progress, on_device
from graphml.conformance import perf, suite
from graphml.conformance.cases import Case, cases
from graphml.conformance.fill import operand
from graphml.conformance.perf import Timing
from graphml.conformance.trial import TrialRun, build
from graphml.conformance.verdict import Verdict
from graphml.ir.own_op import OwnOp

KERNEL, NUMPY, APART = "kernel", "NumPy", "taken apart"


@dataclass(frozen=True)
class OwnResult:
    """What one backend makes of an op.

    how: `kernel`, `NumPy` or, of a fused op without a kernel there, `taken apart`; reason: why no kernel.
    verdicts: of all cases on all numbers of threads. timings: at sizes of real models. memory_bytes_per_s:
    how fast the device reads its own memory; None where that is the host's.
    """

    op: str
    backend: str
    how: str
    reason: str = ""
    verdicts: tuple[Verdict, ...] = ()
    timings: tuple[Timing, ...] = ()
    memory_bytes_per_s: float | None = None

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """The verdicts that failed."""
        return tuple(verdict for verdict in self.verdicts if verdict.failed)

    @property
    def nmse(self) -> float:
        """The largest."""
        return max((verdict.nmse for verdict in self.verdicts), default=0.0)

    @property
    def max_ulp(self) -> int:
        """The largest distance from a wanted value, in steps of float32."""
        return max((verdict.max_ulp for verdict in self.verdicts), default=0)


def check_own_ops(
    ops: Sequence[OwnOp],
    backend: Backend,
    threads: Sequence[int | None],
    progress: Progress = no_progress,
    *,
    timed: bool = True,
) -> Iterator[OwnResult]:
    """Each op's result on a backend. threads: the suite runs with each number; times are of the last.

    timed: whether to measure times, at sizes of real models.
    """
    names = {op.name for op in ops}
    verdicts: list[Verdict] = []
    timings: list[Timing] = []
    refusals: dict[str, str] = {}
    memory = None
    for count in threads:
        device = backend.open(count)
        try:
            here = on_device(backend, device)
            some = cases(here, names.__contains__)
            if isinstance(device, RowCheckingDevice) and count == threads[0]:
                failures = [_outside_its_rows(device, case) for case in some]
                verdicts += [verdict for verdict in failures if verdict is not None]
                names -= {verdict.op for verdict in verdicts}  # compiled it could end the process
            some = [case for case in some if case.op.name in names]
            verdicts += suite.check(here, device, some, progress=progress)
            if count == threads[-1]:
                refusals = _refusals(here, some)
                if timed:
                    timings += perf.measure(here, device, perf.perf_cases(some))
                    memory = device.bandwidth() if isinstance(device, NamedDevice) else None
        finally:
            device.close()
    for op in ops:
        own = tuple(verdict for verdict in verdicts if verdict.op == op.name)
        times = tuple(timing for timing in timings if timing.op == op.name)
        reason = refusals.get(op.name, "")
        how = APART if not own else NUMPY if reason else KERNEL
        yield OwnResult(op.name, backend.name, how, reason, own, times, memory)


def _outside_its_rows(device: RowCheckingDevice, case: Case) -> Verdict | None:
    """A verdict that fails on a kernel that leaves its rows; None for one that does not."""
    if case.inplace >= 0 or case.through:
        return None
    _, (built,) = build([case.at(suite.FEW)])
    dims = {**case.symbols, "T": suite.FEW}
    generator = np.random.default_rng(0)
    operands = {node: operand(case, i, dims, generator) for i, node in enumerate(built.node.inputs)}
    problem = device.outside_its_rows(built.node, operands, dims)
    if not problem:
        return None
    run = str(TrialRun(suite.FEW))
    return Verdict(case.name, case.op.name, case.format, case.call, run, float("inf"), 0.0, problem)


def _refusals(backend: Backend, some: Sequence[Case]) -> dict[str, str]:
    """Op -> why a sample of it has no kernel."""
    reasons: dict[str, str] = {}
    for case in some:
        reason = backend.refuses(build([case])[1][0].node)
        if reason is not None:
            reasons.setdefault(case.op.name, reason)
    return reasons
