"""What becomes of a step plan: it is computed, or submitted and computed later. Knows values alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from graphml.ir.op import Array
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.steps.sampled_rows import Sampled


@dataclass(frozen=True, eq=False)
class Computed:
    """tokens: what follows each sequence of `plan.sampled`, in order. seconds: of the step.

    further: the tokens behind the first of sequences with drafts, all but the last of them as drafted.
    device_tokens: what the device sampled from each, which a plan that was submitted after this one has
    computed; needs_row: whether some need a whole row. failed: sequences whose prompts have rows that are no
    numbers. pooled: the rows of each text.
    """

    tokens: list[Sampled]
    seconds: float
    device_tokens: tuple[int, ...] = ()
    needs_row: bool = False
    failed: Mapping[Sequence, Exception] = field(default_factory=dict)
    pooled: Mapping[Sequence, Array] = field(default_factory=dict)
    further: Mapping[Sequence, list[int | Exception]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class PlanUnderWay:
    """A plan that stages compute while others are planned.

    computed: waits for it and samples; dropped: is called in its place where nobody wants to know. is_done:
    it was computed already.
    """

    plan: StepPlan
    computed: Callable[[], Computed]
    dropped: Callable[[], None] = lambda: None
    is_done: bool = False


@dataclass(frozen=True, eq=False)
class BegunPlan:
    """A submitted plan: its number among the steps, a function that waits for its outputs, when it began."""

    plan: StepPlan
    number: int
    outputs: Callable[[], Mapping[str, Array]]
    begin_s: float
