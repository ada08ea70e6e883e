"""Settings of a fine-tuning as one value: each with its default, help, range and flag.

The command's options and the arguments of `graphml.finetune` come from these fields. Knows numbers; nothing
of models or of torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from graphml.errors import UsageError
from graphml.options.option_fields import POSITIVE, Checked, Real, Whole, check, option


def _names(name: str, value: object) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) and part for part in parts):
        raise UsageError(f"{name}: wanted names of tensors, as attn_q,attn_v; got {value!r:.80}")
    return tuple(parts)


@dataclass(frozen=True)
class FinetuneSettings:
    """How low-rank factors are trained (LoRA, Hu et al. 2021, arXiv:2106.09685).

    The change of a matrix is alpha / rank * b a. The learning rate rises over the first steps, then falls to
    0 in a line; the optimiser is AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101). UsageError for values
    out of their range.
    """

    rank: int = option(16, "Rank of the factors.", "--rank", "-r", range=Whole(1))
    alpha: float | None = option(
        None, "The change of a matrix is ALPHA / rank times the product of its factors.", "--alpha",
        range=POSITIVE, shown="the rank",
    )  # fmt: skip
    targets: tuple[str, ...] | None = option(
        None, "Tensors that are changed, by the names in layers, as attn_q,attn_v.", "--targets",
        range=Checked(_names), metavar="NAME,...", on_command_line=str | None,
        shown="the layers' matrices without routers and experts",
    )  # fmt: skip
    epochs: int = option(3, "Passes over the examples.", "--epochs", range=Whole(1))
    n_steps: int | None = option(
        None, "End after so many steps.", "--steps", "--max-steps", range=Whole(1), shown="all of the epochs"
    )
    n_batch: int = option(8, "Examples in a step.", "--batch", "-b", range=Whole(1))
    n_together: int = option(
        1024, "Tokens that are computed at once, which bounds the memory: gradients are added.",
        "--tokens-at-once", range=Whole(1),
    )  # fmt: skip
    learning_rate: float = option(2e-4, "Highest learning rate.", "--learning-rate", "--lr", range=POSITIVE)
    warmup: float = option(
        0.03, "Share of the steps in which the learning rate rises.", "--warmup", range=Real(0, 0.99)
    )
    weight_decay: float = option(0.0, "Weight decay of the factors.", "--weight-decay", range=Real(0))
    clip: float = option(1.0, "Largest norm of a step's gradient.", "--clip", range=POSITIVE)
    n_ctx: int = option(
        1024, "Tokens of an example; the end of a longer one is cut.", "--ctx-size", "--ctx", "-c",
        range=Whole(2),
    )  # fmt: skip
    seed: int = option(0, "Seed of the first factors and of the order.", "--seed", "-s", range=Whole(0))

    def __post_init__(self) -> None:
        check(self)

    @property
    def factor(self) -> float:
        """What the product of the factors is multiplied by."""
        return (self.rank if self.alpha is None else self.alpha) / self.rank

    def steps(self, n_texts: int) -> int:
        """How many there are for so many examples."""
        whole = self.epochs * -(-n_texts // self.n_batch)
        return whole if self.n_steps is None else min(whole, self.n_steps)

    def rate(self, step: int, n_steps: int) -> float:
        """The learning rate of a step, from 0 on."""
        n_warm = math.ceil(self.warmup * n_steps)
        if step < n_warm:
            return self.learning_rate * (step + 1) / n_warm
        return self.learning_rate * (n_steps - step) / (n_steps - n_warm)

    def as_json(self) -> Mapping[str, object]:
        """By name."""
        return asdict(self) | {"targets": self.targets and list(self.targets)}
