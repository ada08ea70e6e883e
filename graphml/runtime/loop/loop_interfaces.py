"""What the loop of an engine works with: who computes plans, who keeps blocks elsewhere, who gets tokens."""

from __future__ import annotations

from typing import Protocol

from graphml.ir.op import Array
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.steps.computed_plan import Computed, PlanUnderWay
from graphml.runtime.steps.run_ahead import SubmitsPlans


class PlanRunner(SubmitsPlans, Protocol):
    """What computes plans: a `Runner`, or a made-up one."""

    def run(self, plan: StepPlan) -> Computed:
        """What follows each sequence of `plan.sampled`, in order, and the seconds that it took."""

    def begin(self, plan: StepPlan) -> PlanUnderWay:
        """Submit a plan to stages that work at several."""

    def restart(self) -> None:
        """Have zeroed states again after a StatesLostError; BackendError where its device cannot start."""


class Prefixes(Protocol):
    """Blocks that are elsewhere: see `runtime.store.stored_prefixes`. Called by the engine's thread."""

    def load(self) -> None:
        """Before a step is planned."""

    def save(self) -> None:
        """After it, before the step is computed."""

    def forget(self, ids: Array, extra: bytes) -> None:
        """Have them no more."""

    def close(self, keep: bool = True) -> None:
        """No step follows."""


class Listener(Protocol):
    """Who gets the tokens of a sequence; called by the engine's thread, so it must not wait."""

    def sampled(self, token: int) -> str | None:
        """A token was sampled; why it ends the sequence without being a part of it, or None."""

    def appended(self, token: int, last: bool) -> str | None:
        """The token belongs to the sequence, as its last or not; why it is the last all the same, or None."""

    def prompt_computed(self, count: int) -> None:
        """So many ids of the prompt are computed now; more than one of them in this step, or not the last."""

    def denoised(self) -> None:
        """A step of a diffusion model has filled in a part of the sequence's answer."""

    def ended(self, reason: str) -> None:
        """No token follows."""

    def failed(self, error: BaseException) -> None:
        """No token follows, for this reason."""
