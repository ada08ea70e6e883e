"""Measurements of a profile: samples with the times of their steps, and their totals.

Knows times and places of nodes; nothing of tables or files. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from graphml.backend import StepTime
from graphml.inspect.profile.phases import NodePlace
from graphml.ir.node import Node
from graphml.ir.work import NO_WORK, Work


@dataclass(frozen=True)
class Span:
    """Work outside the programs, on the calling thread: its phase, when it began and how long it took."""

    phase: str
    begin_s: float
    seconds: float


@dataclass
class MeasuredRun:
    """One run of a program: its dims, the number of tokens before it, and its steps' times."""

    dims: Mapping[str, int]
    past: int
    times: Callable[[], Sequence[StepTime]]

    @cached_property
    def steps(self) -> Sequence[StepTime]:
        """The times of its steps, in order."""
        return self.times()


@dataclass
class MeasuredSample:
    """One prompt or one token: its begin and end, its runs, and the work outside them."""

    begin_s: float = 0.0
    end_s: float = 0.0
    runs: list[MeasuredRun] = field(default_factory=list)
    outside: list[Span] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From beginning to end."""
        return self.end_s - self.begin_s

    def mean_steps(self) -> list[tuple[Node, float, float]]:
        """Node, seconds of work and of waiting of every step, each the mean of the threads that took part."""
        return [
            (step.node, sum(step.work_s) / len(step.work_s), sum(step.wait_s) / len(step.wait_s))
            for run in self.runs
            for step in run.steps
        ]


@dataclass(frozen=True)
class ProfileEntry:
    """An entry of a profile: a node of the model, or a phase outside the graph (op "").

    calls: kernel calls in a sample. work: of all of them.
    """

    name: str
    op: str
    place: NodePlace
    calls: int = 0
    work: Work = NO_WORK


@dataclass(frozen=True, eq=False)
class MeasuredStage:
    """A prompt measured several times, or the tokens after it.

    name: "prompt" or "generation". tokens: of one sample. seconds [samples]: of each as a whole; work, wait
    [samples, entries]: seconds of each entry. kinds: layer -> its kind. barriers: how often all threads wait
    for each other in a sample; layer_barriers: in a layer, on average. encode_s: processor seconds to submit
    a step to a device that runs asynchronously; None for other devices.
    """

    name: str
    tokens: int
    samples: Sequence[MeasuredSample]
    entries: Sequence[ProfileEntry]
    seconds: NDArray[np.float64]
    work: NDArray[np.float64]
    wait: NDArray[np.float64]
    kinds: Mapping[int, str]
    barriers: int = 0
    layer_barriers: float = 0.0
    encode_s: float | None = None


@dataclass(frozen=True)
class Profile:
    """The profile of a model. threads: those that ran the programs. n_prompt, n_gen: tokens."""

    model: str
    architecture: str
    backend: str
    threads: int
    n_prompt: int
    n_gen: int
    fusions: Mapping[str, int]
    stages: Sequence[MeasuredStage]


def overlays(stage: MeasuredStage) -> dict[str, dict[str, float]]:
    """Overlays of a graph in dumps and the viewer: per node microseconds at work, waiting, and bytes read."""
    values: dict[str, dict[str, float]] = {"time_us": {}, "wait_us": {}, "bytes": {}}
    for i, entry in enumerate(stage.entries):
        if entry.op:
            values["time_us"][entry.name] = 1e6 * float(np.median(stage.work[:, i]))
            values["wait_us"][entry.name] = 1e6 * float(np.median(stage.wait[:, i]))
            values["bytes"][entry.name] = entry.work.n_bytes
    return values
