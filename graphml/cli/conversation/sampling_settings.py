"""`/set`: the settings of a conversation by name, what they are now, and texts turned to their values.

The names are those of `SamplingParams`, besides them seed and max_tokens; those of the flags are understood
too. What a setting is and may be, its field states.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, get_args

from graphml.api.chat import Chat
from graphml.cli.conversation.server_chat import SAME, ServerChat
from graphml.cli.options import options
from graphml.cli.options.opening import seed_of
from graphml.errors import UsageError
from graphml.inspect.dumps.node_names import nearest
from graphml.options.option_fields import Option, options_of
from graphml.sampling import SamplingParams
from graphml.sampling.settings.sampling_defaults import ChosenSampling

STATED = options_of(SamplingParams)
NAMES = {flag.lstrip("-").replace("-", "_"): name for name, option in STATED.items() for flag in option.flags}
SEED, MAX_TOKENS = "seed", "max_tokens"
DEFAULT = "default"


def _help(option: Option) -> str:
    return option.text + (" One, or several as a JSON list; [] for none." if option.repeated else "")


HELP = {name: _help(option) for name, option in STATED.items()} | {
    SEED: get_args(options.Seed)[1].help,
    MAX_TOKENS: get_args(options.MaxTokens)[1].help,
}


def named(text: str) -> str:
    """Return the setting that a text names; UsageError with those that are like it."""
    name = text.lower().lstrip("-").replace("-", "_")
    name = NAMES.get(name, name)
    if name not in HELP:
        raise UsageError(f"/set {text}: no such setting ({nearest(name, HELP)})")
    return name


def value_of(name: str, chat: Chat | ServerChat, sampling: ChosenSampling) -> str:
    """Return what a setting is now, as it would be written after `/set NAME`, and where it comes from."""
    if name == SEED:
        return str(chat.session.seed)
    if name == MAX_TOKENS:
        return "-1" if chat.max_tokens is None else str(chat.max_tokens)
    source = sampling.sources.get(name)
    if source is None and isinstance(chat, ServerChat) and name in SAME:
        return "(the server's)"
    value, write = getattr(sampling.params, name), STATED[name].write
    text = str(value) if write is None else json.dumps(write(value), ensure_ascii=False)
    return text if source is None else f"{text} ({source})"


def changed(
    name: str, text: str, chat: Chat | ServerChat, sampling: ChosenSampling, defaults: ChosenSampling
) -> ChosenSampling:
    """Set a setting to what a text says, in the chat or in the settings that come back; or UsageError.

    defaults: what `default` sets.
    """
    params, sources = sampling.params, dict(sampling.sources)
    if name == SEED:
        chat.session.set_seed(seed_of(_whole(name, text, -1, default=-1)))
    elif name == MAX_TOKENS:
        limit = _whole(name, text, -1, default=-1)
        chat.max_tokens = None if limit < 0 else limit
    elif text == DEFAULT:
        params = dataclasses.replace(params, **{name: getattr(defaults.params, name)})
        sources.pop(name, None)
        sources |= {name: source for name, source in defaults.sources.items() if name not in sources}
    else:
        params = dataclasses.replace(params, **{name: _value(name, text, params)})
        sources[name] = "/set"
    return ChosenSampling(params, sources)


def _value(name: str, text: str, params: SamplingParams) -> Any:
    """The value that a text says, or the text itself: `SamplingParams` reports what was wanted."""
    stated = STATED[name]
    try:
        if not stated.repeated:
            now = getattr(params, name)
            return stated.on_command_line(text) if now is None else _single(type(now), text)
        values = _texts(text) if stated.on_command_line is str else _numbers(text)
    except ValueError:
        return text
    return values if stated.parse is None else stated.parse(values)


def _single(kind: type, text: str) -> Any:
    """A value of this type; ValueError where the text is none."""
    if kind is not bool:
        return kind(text)
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _whole(name: str, text: str, low: int, default: int) -> int:
    try:
        value = default if text == DEFAULT else int(text)
    except ValueError:
        value = low - 1
    if value < low:
        raise UsageError(f"{name}: wanted a whole number of at least {low}, got {text!r}")
    return value


def _texts(text: str) -> list[Any]:
    """One text as it is, or as JSON: "..." with escapes, a list of several."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if isinstance(value, list):
        return value
    value = value if isinstance(value, str) else text
    return [value] if value else []


def _numbers(text: str) -> list[Any]:
    """One number, or a JSON list of several."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(text) from None
    return value if isinstance(value, list) else [value]
