"""Overrides of a file's metadata: values of options that the architecture reads in place of the file's.

Knows keys, values and how llama.cpp writes them; what a key means, its reader knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from graphml.errors import UsageError, did_you_mean
from graphml.options.argument_checks import mapping_of, whole_number
from graphml.weights import Metadata
from graphml.weights.metadata import Override

Value: TypeAlias = bool | int | float | str
FORM = "KEY=TYPE:VALUE with type int, float, bool or str"


def parse_overrides(texts: Iterable[str] | None) -> dict[str, Value] | None:
    """Return key -> value of texts such as `llama.context_length=int:4096`; UsageError for others."""
    return dict(map(_parse, texts)) if texts else None


def _parse(text: str) -> tuple[str, Value]:
    key, _, typed = text.partition("=")
    kind, colon, value = typed.partition(":")
    try:
        if not key or not colon:
            raise ValueError
        if kind == "bool":
            return key, {"true": True, "false": False}[value]
        return key, {"int": int, "float": float, "str": str}[kind](value)
    except (KeyError, ValueError):
        raise UsageError(f"override_kv: wanted {FORM}; got {text!r}") from None


def checked_overrides(name: str, value: object) -> dict[str, Value]:
    """Return the mapping if it is one from keys to single values; UsageError for all else."""
    mapping = mapping_of(name, value, "a mapping from keys to values")
    return {_key(name, key): _single(f"{name}[{key!r}]", single) for key, single in mapping.items()}


def _key(name: str, key: Any) -> str:
    if not isinstance(key, str) or not key.strip("."):
        raise UsageError(f"{name}: wanted keys of metadata, got {key!r}")
    return key


def _single(name: str, value: Any) -> Value:
    whole = whole_number(value)
    if isinstance(value, (bool, str)):
        return value
    if whole is not None and -(1 << 63) <= whole < 1 << 63:
        return whole
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    raise UsageError(f"{name}: wanted a truth value, a number of at most 64 bits, or text; got {value!r}")


def overridden(metadata: Metadata, changes: Mapping[str, tuple[str, Value]]) -> Metadata:
    """The metadata with other values: option that asks for it and value, by key.

    A key that begins with a dot is the architecture's own: `.rope.freq_base` is `llama.rope.freq_base`.
    """
    named = [Override(key, value, origin) for key, (origin, value) in changes.items() if key[0] != "."]
    new_metadata = metadata.overridden(named)
    if len(named) < len(changes):
        prefix = new_metadata.text("general.architecture")
        own = [(f"{prefix}{key}", *more) for key, more in changes.items() if key[0] == "."]
        new_metadata = metadata.overridden(
            [*named, *(Override(key, value, origin) for key, origin, value in own)]
        )
    return new_metadata


def check_read(metadata: Metadata, beside: tuple[str, ...] = ()) -> None:
    """UsageError for an override that nobody has read, but for keys that begin with one of `beside`."""
    for override in metadata.unread_overrides():
        if not override.key.startswith(beside):
            known = set(metadata) - set(metadata.unread())
            raise UsageError(
                f"{override.origin}: nothing reads the key {override.key!r}."
                f"{did_you_mean(override.key, known)}"
            )
