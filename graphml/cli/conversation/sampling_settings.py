"""`/set`: the settings of a conversation by name, what they are now, and texts turned to their values.

The names are those of `SamplingParams`, besides them seed and max_tokens; those of the options are understood
too. What a value may be, `SamplingParams` knows; the help is that of the options.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, get_type_hints

import graphml
from graphml.cli import options
from graphml.cli.opening import seed_of
from graphml.cli.written_values import logit_bias, written_bias
from graphml.errors import UsageError
from graphml.inspect.node_names import nearest

NAME_OF_OPTION = {
    "temp": "temperature",
    "repeat_last_n": "penalty_last_n",
    "dynatemp_exp": "dynatemp_exponent",
    "stop_token": "stop_tokens",
}
SEED, MAX_TOKENS = "seed", "max_tokens"
DEFAULT = "default"


def _helps() -> dict[str, str]:
    hints = get_type_hints(options.Sampling, include_extras=True)
    return {NAME_OF_OPTION.get(name, name): hint.__metadata__[0].help for name, hint in hints.items()}


HELP = _helps() | {
    "stop": "Texts that end an answer: one as it is, or several as a JSON list; [] for none.",
    "logit_bias": "Added to logits: ID+X or ID-X, such as 15043-inf, or several as a JSON list; [] for none.",
    "stop_tokens": "Tokens that end an answer: an id, or several as a JSON list; [] for none.",
    MAX_TOKENS: "Most tokens of an answer; -1: until the model ends.",
}


def named(text: str) -> str:
    """Return the setting that a text names; UsageError with those that are like it."""
    name = text.lower().lstrip("-").replace("-", "_")
    name = NAME_OF_OPTION.get(name, name)
    if name not in HELP:
        raise UsageError(f"/set {text}: no such setting ({nearest(name, HELP)})")
    return name


def value_of(name: str, chat: graphml.Chat, params: graphml.SamplingParams) -> str:
    """Return what a setting is now, as it would be written after `/set NAME`."""
    if name == SEED:
        return str(chat.session.seed)
    if name == MAX_TOKENS:
        return "-1" if chat.max_new is None else str(chat.max_new)
    value = getattr(params, name)
    if name == "logit_bias":
        value = written_bias(value)
    if name == "stop_tokens":
        value = sorted(value)
    return json.dumps(value, ensure_ascii=False) if name in _LISTS else str(value)


def changed(
    name: str, text: str, chat: graphml.Chat, params: graphml.SamplingParams
) -> graphml.SamplingParams:
    """Set a setting to what a text says, in the chat or in the parameters that come back; or UsageError."""
    if name == SEED:
        chat.session.set_seed(seed_of(_whole(name, text, -1, default=-1)))
    elif name == MAX_TOKENS:
        limit = _whole(name, text, -1, default=512)
        chat.max_new = None if limit < 0 else limit
    elif text == DEFAULT:
        return dataclasses.replace(params, **{name: getattr(graphml.SamplingParams(), name)})
    else:
        kind = _LISTS.get(name, type(getattr(params, name)))
        value: Any
        try:
            value = kind(text)
        except ValueError:
            value = text  # SamplingParams tells what was wanted
        return dataclasses.replace(params, **{name: value})
    return params


def _whole(name: str, text: str, low: int, default: int) -> int:
    try:
        value = default if text == DEFAULT else int(text)
    except ValueError:
        value = low - 1
    if value < low:
        raise UsageError(f"{name}: wanted a whole number of at least {low}, got {text!r}")
    return value


def _stops(text: str) -> tuple[str, ...]:
    """One text as it is, or as JSON: "..." with escapes, a list of several."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = text
    if not isinstance(found, (str, list)):
        found = text
    return tuple(found) if isinstance(found, list) else (found,) if found else ()


def _ids(text: str) -> list[Any]:
    """One id, or a JSON list of several."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError(text) from None
    return found if isinstance(found, list) else [found]


def _biases(text: str) -> dict[int, float]:
    return logit_bias("logit_bias", _stops(text))


_LISTS: dict[str, Callable[[str], Any]] = {"stop": _stops, "logit_bias": _biases, "stop_tokens": _ids}
