"""JSON schemas of Python types: pydantic models and dataclasses.

pydantic is not needed: a model states its schema itself. Knows types; nothing of grammars.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final

from graphml.errors import UsageError

_PLAIN: Final[dict[Any, dict[str, Any]]] = {
    str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"},
    type(None): {"type": "null"}, Any: {}, dict: {"type": "object"}, list: {"type": "array"},
}  # fmt: skip
MAX_LEVELS: Final = 50


def schema_of_type(kind: Any) -> dict[str, Any]:
    """The schema of a pydantic model or a dataclass; UsageError for a field's type that has none."""
    stated = getattr(kind, "model_json_schema", None)
    if callable(stated):
        found = stated()
        if not isinstance(found, dict):
            raise UsageError(f"json_schema: {kind!r:.80} states no schema")
        return found
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise UsageError(f"json_schema: wanted a dict, text, dataclass or pydantic model; got {kind!r:.80}")
    return _schema(kind, kind.__name__, 0)


def schema_of_annotation(kind: Any, place: str) -> dict[str, Any]:
    """The schema of a type as annotations have it; UsageError naming the place for one that has none."""
    return _schema(kind, place, 0)


def _schema(kind: Any, place: str, level: int) -> dict[str, Any]:
    if level > MAX_LEVELS:
        raise UsageError(f"json_schema: {place}: types that contain themselves are not supported")
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _of_dataclass(kind, level)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum(kind, [one.value for one in kind], place)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return _enum(kind, [one.value if isinstance(one, enum.Enum) else one for one in parts], place)
    if origin is typing.Annotated:
        return _schema(parts[0], place, level + 1)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(one, place, level + 1) for one in parts]}
    if origin in (list, set, frozenset, Sequence) or (origin is tuple and parts[-1:] == (...,)):
        unique = {"uniqueItems": True} if origin in (set, frozenset) else {}
        return {"type": "array", "items": _schema(parts[0], place, level + 1), **unique}
    if origin is tuple:
        items = [_schema(one, place, level + 1) for one in parts]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin in (dict, Mapping) and parts[0] is str:
        return {"type": "object", "additionalProperties": _schema(parts[1], place, level + 1)}
    try:
        return dict(_PLAIN[kind])
    except (KeyError, TypeError):
        raise UsageError(f"json_schema: {place}: the type {kind!r:.80} has no schema") from None


def _enum(kind: Any, values: list[Any], place: str) -> dict[str, Any]:
    if not values or not all(one is None or isinstance(one, str | int | float) for one in values):
        raise UsageError(f"json_schema: {place}: {kind!r:.80} has no schema; wanted texts, numbers or None")
    return {"enum": values}


def _of_dataclass(kind: type, level: int) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception as error:  # an annotation as text is any expression
        raise UsageError(f"json_schema: {kind.__name__}: its types cannot be read: {error}") from None
    fields = [one for one in dataclasses.fields(kind) if one.init]
    nothing = dataclasses.MISSING
    return {
        "type": "object",
        "properties": {
            one.name: _schema(hints[one.name], f"{kind.__name__}.{one.name}", level + 1) for one in fields
        },
        "required": [one.name for one in fields if one.default is nothing and one.default_factory is nothing],
        "additionalProperties": False,
    }
