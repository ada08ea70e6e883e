"""Where the time of an engine's steps goes: by op, in waits, and outside of the program.

Knows timed programs and recorded steps; nothing of tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean, median

from graphml.api.model import Model
from graphml.backend import StepTime, TimedProgram
from graphml.ir.node import Node
from graphml.ir.work import plain_nodes, products
from graphml.runtime.loop.timeline import TimelineStep

WAITS, SAMPLING, BETWEEN = "(waits)", "(inputs and sampling)", "(between steps)"


@dataclass(frozen=True)
class OpTime:
    """Seconds of a step in an op: the median of all steps, the mean of the threads.

    main: a product or attention.
    """

    op: str
    seconds: float
    share: float
    main: bool


class StepShares:
    """Records the runs of the program of an engine's token steps, those with at most n_sequences rows."""

    def __init__(self, model: Model, n_sequences: int) -> None:
        program = model.executor.compiled(n_sequences, n_sequences, None, n_sequences).program
        self._program = program if isinstance(program, TimedProgram) else None
        self._runs: list[Callable[[], Sequence[StepTime]]] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Within the block its runs are timed. A program that cannot be timed has none."""
        if self._program is None:
            yield
            return
        self._program.time_steps(self._take)
        try:
            yield
        finally:
            self._program.time_steps(None)

    def _take(self, _: Mapping[str, int], times: Callable[[], Sequence[StepTime]]) -> None:
        self._runs.append(times)

    def of(self, steps: Sequence[TimelineStep]) -> list[OpTime]:
        """The shares of these steps, the largest first; none where nothing was timed."""
        if not self._runs or not steps:
            return []
        op_seconds: dict[str, list[float]] = defaultdict(list)
        main: set[str] = set()
        for times in self._runs:
            of_run: dict[str, float] = defaultdict(float)
            for node_time in times():
                of_run[node_time.node.op.name] += mean(node_time.work_s)
                of_run[WAITS] += mean(node_time.wait_s)
                if is_main(node_time.node):
                    main.add(node_time.node.op.name)
            for op, seconds in of_run.items():
                op_seconds[op].append(seconds)
        taken = {op: median(each) for op, each in op_seconds.items()}
        computed = median(step.compute_s for step in steps)
        whole = median(step.end_s - step.begin_s for step in steps)
        taken[SAMPLING] = max(0.0, computed - sum(taken.values()))
        taken[BETWEEN] = max(0.0, whole - computed)
        rows = [OpTime(op, each, each / whole, op in main) for op, each in taken.items()]
        return sorted(rows, key=lambda row: -row.seconds)


def is_main(node: Node) -> bool:
    """Whether a node is a product or attention, alone or fused with something."""
    return bool(products(node)) or any(part.op.name == "attention" for part in plain_nodes(node))
