"""One step of a fine-tuning, and its loss over the steps as text and as a picture.

Knows numbers; nothing of torch. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from graphml.errors import UsageError

_WIDTH = 40  # characters of the longest bar
_SMOOTHED = 20  # points of a curve's mean


@dataclass(frozen=True)
class Step:
    """number: from 1 on. loss: the mean over its n_learned tokens, in nats, before the change."""

    number: int
    loss: float
    learning_rate: float
    n_learned: int
    n_tokens: int
    seconds: float


def mean_loss(steps: Sequence[Step]) -> float:
    """Over the learned tokens of these steps."""
    return sum(step.loss * step.n_learned for step in steps) / sum(step.n_learned for step in steps)


HEAD = f"{'step':>6}  {'loss':>7}  {'rate':>8}  {'speed':>10}"
"""Over the rows of `row`."""


def row(steps: Sequence[Step], highest: float) -> str:
    """A line of the curve: the last of these steps, their loss and its bar, tokens a second."""
    loss, last = mean_loss(steps), steps[-1]
    rate = sum(step.n_tokens for step in steps) / sum(step.seconds for step in steps)
    bar = "#" * round(_WIDTH * min(1.0, loss / highest)) if highest > 0 else ""
    return f"{last.number:6}  {loss:7.4f}  {last.learning_rate:8.1e}  {rate:6.0f} t/s  {bar}"


def draw(path: Path, steps: Sequence[Step], validation: tuple[float, float] | None, title: str) -> None:
    """Draw the losses of the steps and their mean over some, with those of the texts that were kept apart."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120)
    numbers, losses = [step.number for step in steps], [step.loss for step in steps]
    axes.plot(numbers, losses, color="tab:blue", alpha=0.35, label="steps")
    window = max(1, len(steps) // _SMOOTHED)
    means = [mean_loss(steps[max(0, at + 1 - window) : at + 1]) for at in range(len(steps))]
    axes.plot(numbers, means, color="tab:blue", label=f"mean of {window} steps")
    if validation is not None:
        axes.plot([0, numbers[-1]], validation, "o", color="tab:orange", label="texts kept apart")
    axes.set(xlabel="step", ylabel="loss, nats a token", title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    try:
        figure.tight_layout()
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"--plot {path}: cannot be written: {error.strerror or error}") from None
    finally:
        pyplot.close(figure)
