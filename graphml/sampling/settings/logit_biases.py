"""Logit biases: a mapping from token id to the value that is added to its logit, and its form as texts.

Knows how llama.cpp writes them (`15043+1`, `15043-inf`); nothing of logits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from graphml.errors import UsageError
from graphml.options.argument_checks import mapping_of
from graphml.options.option_fields import Real, Whole

_BIAS = re.compile(r"\s*(\d{1,18})\s*([+-])(.+)")


def checked_biases(name: str, value: object) -> dict[int, float]:
    """Return the mapping if it is one from token ids to numbers, of which -inf forbids; else UsageError."""
    biases = mapping_of(name, value, "a mapping from token id to a number")
    checked: dict[int, float] = {}
    for token, bias in biases.items():
        token_id = Whole(0).read(f"{name}: token id", token)
        forbids = isinstance(bias, float) and bias == -math.inf
        checked[token_id] = -math.inf if forbids else Real().read(f"{name}[{token_id}]", bias)
    return checked


def parse_biases(texts: Iterable[object]) -> dict[int, float]:
    """Return id -> bias of texts such as `15043+1`, the last one of an id; UsageError for other texts."""
    return dict(map(_parse, texts))


def _parse(text: object) -> tuple[int, float]:
    parts = _BIAS.fullmatch(text) if isinstance(text, str) else None
    try:
        if parts is None:
            raise ValueError
        return int(parts[1]), float(parts[3]) * (1 if parts[2] == "+" else -1)
    except ValueError:
        raise UsageError(f"logit_bias: wanted ID+X or ID-X, such as 15043-inf; got {text!r}") from None


def written_biases(biases: Mapping[int, float]) -> list[str]:
    """Return the biases as `parse_biases` reads them."""
    return [f"{token}{'+' if bias >= 0 else ''}{bias!r}" for token, bias in biases.items()]
