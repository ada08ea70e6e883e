"""What each number of the sampling settings may be: the ends of a range are taken, what is beyond refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from graphml.errors import UsageError
from graphml.options.option_fields import Real, Whole, options_of
from graphml.sampling import SamplingParams

ANY = 3.4e38
RANGES: dict[str, tuple[float, float, float | None]] = {
    "temperature": (0.0, ANY, 0.0),
    "dynatemp_range": (0.0, ANY, 0.0),
    "dynatemp_exponent": (0.0, ANY, 1.0),
    "top_p": (0.0, 1.0, 1.0),
    "min_p": (0.0, 1.0, 0.0),
    "typical_p": (0.0, 1.0, 1.0),
    "top_n_sigma": (-ANY, ANY, -1.0),
    "epsilon_cutoff": (0.0, 1.0, 0.0),
    "eta_cutoff": (0.0, 1.0, 0.0),
    "xtc_probability": (0.0, 1.0, 0.0),
    "xtc_threshold": (0.0, 1.0, 0.1),
    "repeat_penalty": (1.2e-38, ANY, 1.0),
    "presence_penalty": (-ANY, ANY, 0.0),
    "frequency_penalty": (-ANY, ANY, 0.0),
    "dry_multiplier": (-ANY, ANY, 0.0),
    "dry_base": (0.0, ANY, 1.75),
    "mirostat_tau": (0.0, ANY, 5.0),
    "mirostat_eta": (0.0, ANY, 0.1),
    "adaptive_target": (-1.0, 1.0, -1.0),
    "adaptive_decay": (0.0, 0.99, 0.9),
    "top_k": (0, 2**40, 0),
    "min_keep": (0, 2**40, 0),
    "repeat_last_n": (-1, 2**40, 64),
    "dry_allowed_length": (0, 2**40, 2),
    "dry_penalty_last_n": (-1, 2**40, -1),
    "mirostat": (0, 2, 0),
    "logprobs": (0, 256, None),
    "prompt_logprobs": (0, 256, None),
    "reasoning_budget": (-1, 2**40, -1),
    "spec_draft_n_max": (1, 64, 15),
    "spec_draft_n_min": (0, 64, 0),
    "diffusion_steps": (1, 65536, 128),
    "diffusion_block_length": (0, 65536, 0),
    "diffusion_eps": (0.0, 1.0, 0.0),
    "diffusion_alg_temp": (0.0, ANY, 0.0),
    "diffusion_cfg_scale": (0.0, 100.0, 0.0),
}


def test_every_number_is_here() -> None:
    stated = options_of(SamplingParams)
    assert {name for name, one in stated.items() if isinstance(one.range, Whole | Real)} == set(RANGES)


@pytest.mark.parametrize("name", RANGES)
def test_a_number_has_a_range(name: str) -> None:
    least, most, default = RANGES[name]
    assert getattr(SamplingParams(), name) == default
    given: dict[str, Any] = {}
    if name == "spec_draft_n_min":
        given["spec_draft_n_max"] = 64
    for value in (least, most):
        assert getattr(SamplingParams(**{name: value}, **given), name) == value
    whole = isinstance(least, int)
    beyond: list[Any] = [least - 1 if whole else least - max(abs(least) * 1e-2, 1e-6)]
    if most != 2**40:
        beyond.append(most + 1 if whole else most + max(abs(most) * 1e-2, 1e-6))
    if name == "top_k":
        beyond.remove(-1)  # llama.cpp's: all of them
    for value in (*beyond, math.nan, math.inf, "1", True, *([0.5] if whole else [])):
        with pytest.raises(UsageError, match=name):
            SamplingParams(**{name: value}, **given)
