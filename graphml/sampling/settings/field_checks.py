"""Checks of sampling settings whose types are not plain numbers: texts, ids, biases, schemas, functions.

Each gets the name of a setting and what was given for it, and returns the setting's value. A bias is written
as llama.cpp does, a function of the user's own as `FILE.py:NAME`. Knows no setting.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from graphml.errors import UsageError
from graphml.loading.discovery import function_from_file
from graphml.options.argument_checks import items_of, mapping_of
from graphml.options.option_fields import Real, Whole


def checked_texts(name: str, value: object) -> tuple[str, ...]:
    """Texts, none of them empty; a text stands for itself alone."""
    texts = [value] if isinstance(value, str) else items_of(name, value, "texts such as ('\\n',)")
    for text in texts:
        if not isinstance(text, str) or not text:
            raise UsageError(f"{name}: wanted strings that are not empty, got {text!r}")
    return tuple(texts)


def checked_breakers(name: str, value: object) -> tuple[str, ...]:
    """An empty text or `none` alone, as on the command line, means that there are none."""
    breakers = items_of(name, value, "a tuple of strings such as ('\\n',)")
    return () if breakers in ([""], ["none"]) else checked_texts(name, breakers)


def checked_token_ids(name: str, value: object) -> frozenset[int]:
    """Ids, whole numbers from 0."""
    return frozenset(
        Whole(0).read(name, token) for token in items_of(name, value, "a collection of token ids")
    )


def checked_flag(name: str, value: object) -> bool:
    """True or False, and no number."""
    if not isinstance(value, bool):
        raise UsageError(f"{name}: wanted True or False, got {value!r}")
    return value


def checked_json_text(name: str, value: object) -> str:
    """A schema as text, so that params can be compared: of a dict, a dataclass or a pydantic model."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict | bool):
        from graphml.sampling.schemas.type_schemas import schema_of_type

        value = schema_of_type(value)
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{name}: wanted a JSON schema as a text or a dict; {error}") from None


def opened_schema_text(text: str) -> str:
    """A schema that says of each object with properties that there may be others; other texts as they are."""
    from graphml.sampling.schemas.schema_closing import opened_schema

    try:
        return json.dumps(opened_schema(json.loads(text)))
    except (ValueError, RecursionError):  # it is refused where it is compiled
        return text


OwnFunction: TypeAlias = Callable[[Any, Any, Sequence[int]], Any]
"""ids int32 [n], logits float32 [n], the token ids so far -> logits, float32 [n]."""


def checked_function(name: str, value: object) -> OwnFunction | None:
    """The function, or that of a text `FILE.py:NAME`, whose file is run; UsageError for anything else."""
    if value in (None, "none"):
        return None
    if callable(value):
        return value
    if not isinstance(value, str) or ":" not in value:
        raise UsageError(
            f"{name}: wanted a function of (ids, logits, history), or FILE.py:NAME; got {value!r}"
        )
    file, _, called = value.rpartition(":")
    try:
        return function_from_file(Path(file), called)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error


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
