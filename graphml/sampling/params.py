"""What a caller asks of the sampler: one frozen value, checked when it is made.

Knows field names and their ranges; knows nothing of logits, candidates or a random generator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from graphml.errors import UsageError
from graphml.option_fields import Whole

LARGEST, SMALLEST = 3.4028234663852886e38, 1.1754943508222875e-38
"""The ends of float32's range."""


@dataclass(frozen=True)
class SamplingParams:
    """Settings of one sampler chain; `SamplingParams()` is greedy.

    Fields keep llama.cpp's names and meaning where it has them. A field at its default leaves its step out.

    temperature: 0 takes the most likely token, whatever the filters below say; the bias and the penalties
        still count. Above 0 it divides the logits.
    dynatemp_range, dynatemp_exponent: the temperature moves within temperature -+ range with the entropy.
    top_k: keep the k most likely; 0 is off.
    top_p: keep the most likely tokens that together reach p; 1.0 is off.
    min_p: keep tokens at least min_p times as likely as the most likely one; 0.0 is off.
    typical_p: keep the tokens nearest to the entropy that together exceed p; 1.0 is off.
    min_keep: the fewest tokens that top_p, min_p and typical_p leave.
    repeat_penalty: divides positive and multiplies other logits of tokens in the window; 1.0 is off.
    presence_penalty, frequency_penalty: taken off once, and once per occurrence in the window; any sign.
    penalty_last_n: length of that window, prompt included; 0 is off, -1 is the whole history.
    logit_bias: token id -> value added to its logit; -inf forbids the token.
    stop: strings that end the generation; stop_tokens: ids that do.

    Numbers are computed with in float32, so they lie in its range. Raises UsageError naming the field, what
    was wanted and what came.
    """

    temperature: float = 0.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    min_keep: int = 0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        checked: dict[str, object] = {
            "temperature": _real("temperature", self.temperature, 0.0),
            "dynatemp_range": _real("dynatemp_range", self.dynatemp_range, 0.0),
            "dynatemp_exponent": _real("dynatemp_exponent", self.dynatemp_exponent, 0.0),
            "top_k": Whole(0).read("top_k", self.top_k),
            "top_p": _real("top_p", self.top_p, 0.0, 1.0),
            "min_p": _real("min_p", self.min_p, 0.0, 1.0),
            "typical_p": _real("typical_p", self.typical_p, 0.0, 1.0),
            "min_keep": Whole(0).read("min_keep", self.min_keep),
            "repeat_penalty": _real("repeat_penalty", self.repeat_penalty, 0.0),
            "presence_penalty": _real("presence_penalty", self.presence_penalty),
            "frequency_penalty": _real("frequency_penalty", self.frequency_penalty),
            "penalty_last_n": Whole(-1).read("penalty_last_n", self.penalty_last_n),
            "logit_bias": _bias(self.logit_bias),
            "stop": _stop(self.stop),
            "stop_tokens": _stop_tokens(self.stop_tokens),
        }
        if float(self.repeat_penalty) < SMALLEST:
            raise UsageError(
                f"repeat_penalty: wanted a number above 0, at least {SMALLEST:.2g} (1.0 is off); got "
                f"{self.repeat_penalty!r}"
            )
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """Whether any penalty changes a logit."""
        neutral = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty) == (1.0, 0.0, 0.0)
        return self.penalty_last_n != 0 and not neutral


def checked_params(params: SamplingParams | None) -> SamplingParams:
    """The settings, or those of greedy sampling for None; UsageError for anything else."""
    if params is not None and not isinstance(params, SamplingParams):
        raise UsageError(f"params: wanted SamplingParams or None, got {params!r}")
    return params or SamplingParams()


def _real(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
    wanted = f"a finite number in float32's range, up to {LARGEST:.2g},"
    if high < math.inf:
        wanted = f"a number from {low:g} to {high:g}"
    elif low > -math.inf:
        wanted = f"a finite number of at least {low:g} and at most {LARGEST:.2g}"
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        raise UsageError(f"{name}: wanted {wanted}, got {value!r}")
    try:
        number = float(cast("float", value))
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{name}: wanted {wanted}, got {value!r}") from None
    if not abs(number) <= LARGEST or not low <= number <= high:
        raise UsageError(f"{name}: wanted {wanted}, got {value!r}")
    return number


def _bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise UsageError(f"logit_bias: wanted a mapping from token id to a number, got {value!r}")
    checked: dict[int, float] = {}
    for token, bias in value.items():
        token_id = Whole(0).read("logit_bias: token id", token)
        forbids = isinstance(bias, float) and bias == -math.inf
        checked[token_id] = -math.inf if forbids else _real(f"logit_bias[{token_id}]", bias)
    return checked


def _stop(value: object) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise UsageError(f"stop: wanted a tuple of strings such as ('\\n',), got {value!r}")
    stops = tuple(value)
    for text in stops:
        if not isinstance(text, str) or not text:
            raise UsageError(f"stop: wanted strings that are not empty, got {text!r}")
    return stops


def _stop_tokens(value: object) -> frozenset[int]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise UsageError(f"stop_tokens: wanted a collection of token ids, got {value!r}")
    return frozenset(Whole(0).read("stop_tokens", token) for token in value)
