"""Values of options that are written in a form of their own: logit biases and template variables.

Knows how llama.cpp writes them; what they may be, the library checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from graphml.errors import UsageError

_BIAS = re.compile(r"\s*(\d{1,18})\s*([+-])(.+)")


def logit_bias(name: str, texts: Iterable[str]) -> dict[int, float]:
    """Return id -> bias of texts such as `15043+1` and `15043-inf`, the last one of an id; else UsageError.

    name: who gave them, for the error.
    """
    found = {}
    for text in texts:
        parts = _BIAS.fullmatch(text)
        try:
            if parts is None:
                raise ValueError
            found[int(parts[1])] = float(parts[3]) * (1 if parts[2] == "+" else -1)
        except ValueError:
            raise UsageError(f"{name}: wanted ID+X or ID-X, such as 15043-inf; got {text!r}") from None
    return found


def written_bias(biases: Mapping[int, float]) -> list[str]:
    """Return the biases as `logit_bias` reads them."""
    return [f"{token}{'+' if bias >= 0 else ''}{bias!r}" for token, bias in biases.items()]


def template_variables(text: str | None) -> dict[str, Any] | None:
    """Return the variables of a JSON object; None for none, UsageError for other texts."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        example = '{"enable_thinking": false}'
        raise UsageError(f"--chat-template-kwargs: wanted a JSON object such as {example}; got {text!r:.80}")
    return found
