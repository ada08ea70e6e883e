"""Measures tests on alternating sides: A B, B A, A B, ..., one round after another.

Alternation makes the ratio of two sides immune to changes of the machine's speed: each round has a ratio of
its own, and the ratio reported is the median. Knows sides and clocks; nothing of processes, files or tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from graphml.backend import Progress, no_progress
from graphml.bench.machine_use import Energy, busy_s
from graphml.bench.side import MeasuredSide, Usage
from graphml.bench.test_plan import Test
from graphml.ir.work import NO_WORK, Work

STABLE = 0.03  # the warm-up ends with a run that improves on the best by less
MOST_WARM_UPS = 5
WARM_UP_S = 10.0
SETTLE_S = 0.02  # until spinning threads of the previous side are asleep
WORKING = "bench"

NO_USAGE = Usage()
Probe = Callable[[], float]


@dataclass(frozen=True)
class Measured:
    """Measurements of one side: nanoseconds of each round, the test's cost and the shares of its time.

    cost: that of graphml for every side, because it runs the same model. bound: shares of 1. resident: bytes.
    bandwidth: bytes per second of the memory that this side reads, the best measured between rounds; 0: not
    known. steps: nanoseconds of every decode step of all rounds. joules: of each round, of the processor's
    packages; empty: not known. usage: of its process at the end. others_busy: how many processors other
    processes kept busy meanwhile.
    """

    side: MeasuredSide
    test: Test
    ns: tuple[int, ...]
    cost: Work = NO_WORK
    bound: dict[str, float] = field(default_factory=dict)
    bandwidth: float = 0.0
    steps: tuple[int, ...] = ()
    joules: tuple[float, ...] = ()
    usage: Usage = NO_USAGE
    others_busy: float = 0.0

    @property
    def rates(self) -> list[float]:
        """Tokens per second of each round."""
        return [1e9 * self.test.n_tokens / max(taken, 1) for taken in self.ns]


@dataclass(frozen=True)
class Round:
    """A test measured on all sides."""

    test: Test
    sides: tuple[Measured, ...]

    def ratios(self, side: int, other: int = 0) -> list[float]:
        """The other side's speed over that side's, round by round."""
        return [theirs / ours for ours, theirs in zip(self.sides[other].ns, self.sides[side].ns, strict=True)]


def measure(
    sides: Sequence[MeasuredSide],
    tests: Sequence[Test],
    repetitions: int = 5,
    probe: Probe | None = None,
    warm: bool = True,
    settle_s: float = SETTLE_S,
    delay_s: float = 0.0,
    progress: Progress = no_progress,
    energy: Energy | None = None,
) -> Iterator[Round]:
    """Measure each test on all sides, and yield the rounds one after the other.

    probe: returns the host's memory bandwidth in bytes per second, called between the rounds; None: no side's
    memory is measured. warm: first run each side until
    it is stable. delay_s: pause before each test. progress: called as progress("bench", rounds done, in all).
    energy: the machine's counters; None: not read.
    """
    best = [0.0] * len(sides)
    for number, test in enumerate(tests):
        time.sleep(delay_s)
        costs = [side.prepare(test) for side in sides]
        if warm:
            for side in sides:
                warm_up(side)
        taken: list[list[int]] = [[] for _ in sides]
        steps: list[list[int]] = [[] for _ in sides]
        joules: list[list[float]] = [[] for _ in sides]
        busy = _Busy(sides)
        for turn in range(repetitions):
            progress(WORKING, number * repetitions + turn, len(tests) * repetitions)
            if probe is not None:
                best = list(map(max, best, _bandwidths(sides, probe)))
            for index in order(len(sides), turn):
                time.sleep(settle_s)
                counted = energy.read() if energy is not None else {}
                taken[index].append(sides[index].run())
                steps[index] += sides[index].steps
                if energy is not None and counted:
                    joules[index].append(energy.since(counted))
        others = busy.others()
        cost = max(costs, key=lambda work: work.n_bytes)
        measured = tuple(
            Measured(
                side,
                test,
                tuple(ns),
                cost,
                _bound(side, memory, ns),
                memory,
                tuple(of_steps),
                tuple(used),
                side.usage(),
                others,
            )
            for side, ns, memory, of_steps, used in zip(sides, taken, best, steps, joules, strict=True)
        )
        yield Round(test, measured)
    progress(WORKING, len(tests) * repetitions, len(tests) * repetitions)


class _Busy:
    """How busy processes other than the sides and this one keep the machine, from now on."""

    def __init__(self, sides: Sequence[MeasuredSide]) -> None:
        self._sides, self._start = sides, time.perf_counter()
        self._before = self._others_s()

    def _others_s(self) -> float:
        """Processor seconds of all others."""
        own = time.process_time() + sum(side.usage().cpu_s for side in self._sides)
        return busy_s() - own

    def others(self) -> float:
        """Processors that they kept busy, on average; 0 if it is not known."""
        elapsed = time.perf_counter() - self._start
        return max(0.0, (self._others_s() - self._before) / elapsed) if busy_s() and elapsed else 0.0


def _bandwidths(sides: Sequence[MeasuredSide], probe: Probe) -> list[float]:
    """The bandwidth of each side's memory now; the host's is measured once for all."""
    host = probe() if any(side.on_host for side in sides) else 0.0
    return [host if side.on_host else side.bandwidth() for side in sides]


def _bound(side: MeasuredSide, bandwidth: float, ns: Sequence[int]) -> dict[str, float]:
    return side.bound(bandwidth, median(ns) / 1e9) if bandwidth else {}


def order(count: int, turn: int) -> list[int]:
    """The order of the sides in a round: reversed every time, so that none always follows the same one."""
    return list(range(count)) if turn % 2 == 0 else list(range(count - 1, -1, -1))


def warm_up(side: MeasuredSide) -> int:
    """Run the side until a run hardly improves on the best, at most a few times; returns how often."""
    start, best = time.perf_counter(), 0
    for count in range(1, MOST_WARM_UPS + 1):
        taken = side.run()
        if best and taken > best * (1 - STABLE):
            return count
        best = taken
        if time.perf_counter() - start > WARM_UP_S:
            return count
    return MOST_WARM_UPS
