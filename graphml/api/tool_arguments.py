"""Arguments of a call as the types of the function that is called.

Knows types and values of JSON; nothing of tools or schemas.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from graphml.sampling.schemas.type_schemas import states_schema


def typed_value(value: Any, kind: Any) -> Any:
    """What JSON has for a value of the type, as the type."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    if origin is typing.Literal:
        return next((part for part in parts if isinstance(part, enum.Enum) and part.value == value), value)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        hints = typing.get_type_hints(kind)
        return kind(**{name: typed_value(item, hints.get(name)) for name, item in value.items()})
    if states_schema(kind):
        return kind.model_validate(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin is typing.Annotated:
        return typed_value(value, parts[0])
    if origin in (typing.Union, types.UnionType):
        of_value = [part for part in parts if part is not type(None)]
        return value if value is None or len(of_value) != 1 else typed_value(value, of_value[0])
    if origin in (list, set, frozenset) and isinstance(value, list):
        return origin(typed_value(item, parts[0]) for item in value)
    if origin is Sequence and isinstance(value, list):
        return [typed_value(item, parts[0]) for item in value]
    if origin is tuple and isinstance(value, list):
        kinds = parts[:1] * len(value) if parts[1:] == (...,) else parts
        return tuple(typed_value(item, each) for item, each in zip(value, kinds, strict=True))
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {name: typed_value(item, parts[1]) for name, item in value.items()}
    return value
