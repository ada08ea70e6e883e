"""Runs a suite: measures every case, judges its row by its goals, and formats the table.

Knows cases and rows; `job` measures.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, islice

from benchmarks.suites import Case, Goal
from graphml.backend import Progress, no_progress
from graphml.bench.job import Job
from graphml.bench.logit_check import WRONG
from graphml.bench.measure import measure
from graphml.bench.result_rows import ResultRow, rows
from graphml.bench.row_formats import TOO_NOISY, device, notes, of_bandwidth, ratio, speed
from graphml.bench.side import ProcessSide
from graphml.bench.test_plan import SideParameters
from graphml.bench.written_rows import aligned, heads

Models = Callable[[str, str], str]


@dataclass(frozen=True)
class Judged:
    """A row of a case and whether each of its goals was reached; a case without goals has no verdict.

    others: the rows of the other sides.
    """

    case: Case
    row: ResultRow
    others: tuple[ResultRow, ...] = ()

    def reached(self, goal: Goal) -> bool:
        """Whether the row's figure reaches the goal, or the alternative one."""
        if self.refused(goal):
            return False
        value = figure(self.row, goal.figure)
        good = value <= goal.value if goal.figure == "ms" else value >= goal.value
        return good or (goal.otherwise is not None and self.reached(goal.otherwise))

    def refused(self, goal: Goal) -> bool:
        """Whether the figure of a goal was refused because it was too noisy."""
        return ("ratio" if goal.figure == "ratio" else "t/s") in self.row.refused

    @property
    def verdict(self) -> str:
        """PASS, or the figures that fall short, or those that were refused; or that its logits are wrong."""
        missed = [goal for goal in self.goals if not self.reached(goal)]
        short = [goal.figure for goal in missed if not self.refused(goal)]
        if self.row.correct == WRONG:
            return WRONG
        if not self.goals:
            return ""
        if missed and not short:
            return TOO_NOISY
        return f"short: {', '.join(short)}" if short else "PASS"

    @property
    def named(self) -> ResultRow:
        """The row with its name, its goals and its verdict."""
        return replace(self.row, suite_case=self.case.name, wanted=self.wanted, verdict=self.verdict)

    @property
    def wanted(self) -> str:
        """The goals as text."""
        return ", ".join(goal.text() for goal in self.goals)

    @property
    def goals(self) -> list[Goal]:
        """The case's goals for this number of threads."""
        return [goal for goal in self.case.goals if self.row.n_threads >= goal.threads]


def figure(row: ResultRow, name: str) -> float:
    """The figure of a row that goals name."""
    return {
        "ratio": row.ratio,
        "t/s": row.median_ts,
        "ms": milliseconds(row),
        "of bandwidth": row.of_bandwidth,
    }[name]


def milliseconds(row: ResultRow) -> float:
    """The median time of a run."""
    return 1e3 * row.n_parallel * (row.n_prompt + row.n_gen) / row.median_ts


def run_cases(
    cases: Sequence[Case],
    threads: Sequence[int],
    models: Models,
    base: Job,
    repetitions: int | None = None,
    progress: Progress = no_progress,
) -> Iterator[Judged]:
    """Measure the cases with each number of threads, in order, and yield the judged rows.

    models: shape and type -> path of the model. base: the job without settings, tests and repetitions.
    repetitions: in place of the cases' own. Of several sides the first one's row is judged.
    """
    for count in threads:
        wanted = [case for case in cases if not case.threads or count in case.threads]
        for (shape, type, quant, busy, rounds), group in groupby(
            wanted, lambda case: (case.shape, case.type, case.quant, case.busy, case.repetitions)
        ):
            together = list(group)
            setting = SideParameters(
                "graphml", models(shape, type), "cpu", count, quant=quant, arch=base.arch
            )
            job = replace(
                base, settings=[setting], tests=[case.test for case in together],
                repetitions=rounds if repetitions is None else repetitions,
            )  # fmt: skip
            found = _beside_busy(job, setting, busy, progress) if busy else job.rows(progress)
            sides = 2 if busy else len(job.engines)
            for case in together:
                first, *others = islice(found, sides)
                yield Judged(case, first, tuple(replace(row, suite_case=case.name) for row in others))


def _beside_busy(job: Job, setting: SideParameters, busy: int, progress: Progress) -> Iterator[ResultRow]:
    """All threads beside one thread, both graphml's, while other processes keep processors busy."""
    digest = job.digest(setting, progress)
    with ExitStack() as stack:
        sides = [
            stack.enter_context(ProcessSide(replace(setting, threads=count)))
            for count in (setting.threads, 1)
        ]
        sides[1].name = "one thread"
        stack.enter_context(_busy_processes(busy))
        shared = job.shared(setting, sides, digest)
        for found in measure(sides, job.tests, job.repetitions, warm=job.warm, progress=progress):
            yield from (replace(row, others_busy=0.0) for row in rows(found, shared))  # they are meant


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-P", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


_COLUMNS: tuple[tuple[str, int, Callable[[Judged], str]], ...] = (
    ("case", -28, lambda one: one.case.name),
    ("threads", 7, lambda one: str(one.row.n_threads)),
    ("test", 22, lambda one: one.row.test),
    ("t/s", 20, lambda one: speed(one.row)),
    ("ms", 9, lambda one: "" if "t/s" in one.row.refused else f"{milliseconds(one.row):.1f}"),
    ("resident MB", 11, lambda one: f"{one.row.resident_bytes / 1e6:.0f}"),
    ("of bandwidth", 12, lambda one: of_bandwidth(one.row)),
    ("bound by", -8, lambda one: one.row.bound),
    ("ratio", 14, lambda one: ratio(one.row)),
    ("the other's t/s", 20, lambda one: speed(one.others[0]) if one.others else ""),
    ("wanted", -32, lambda one: one.wanted),
    ("verdict", -20, lambda one: one.verdict),
)


def markdown(found: Iterable[Judged]) -> Iterator[str]:
    """One line for each case once it is measured; then the machine."""
    kept, head = list[ResultRow](), heads(_COLUMNS)
    for one in found:
        yield head + aligned(_COLUMNS, [cell(one) for _, _, cell in _COLUMNS])
        head = ""
        kept += [one.row, *one.others]
    if kept:
        last = kept[-1 - len(one.others)]
        version = last.build_commit or last.engine_version
        yield f"\nbuild: {version}; {device(last)}; load {last.load_average:.1f} at the beginning\n"
    yield from notes(kept)
