"""JSON schemas of Python types: those of annotations, dataclasses and pydantic models.

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
from graphml.sampling.schemas.schema_words import Schema, with_subschemas

_PLAIN: Final[dict[Any, dict[str, Any]]] = {
    str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"},
    type(None): {"type": "null"}, Any: {}, dict: {"type": "object"}, list: {"type": "array"},
}  # fmt: skip
MAX_LEVELS: Final = 50
_KNOWN: Final = (
    "str, int, float, bool, list, dict, tuple, Optional, Literal, an enum, a dataclass or a pydantic model"
)
_ENDLESS: Final = "types that contain themselves are not supported"
_DEFINED: Final = "#/$defs/"


def schema_of_type(kind: Any) -> dict[str, Any]:
    """The schema of a pydantic model or a dataclass; UsageError for a field's type that has none."""
    if states_schema(kind):
        return _stated(kind, "json_schema")
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise UsageError(f"json_schema: wanted a dict, text, dataclass or pydantic model; got {kind!r:.80}")
    return _schema(kind, f"json_schema: {kind.__name__}", 0)


def states_schema(kind: Any) -> bool:
    """Whether a type states its schema itself, as a pydantic model does."""
    return callable(getattr(kind, "model_json_schema", None))


def schema_of_annotation(kind: Any, place: str) -> dict[str, Any]:
    """The schema of a type as annotations have it; UsageError that begins with the place for one without."""
    return _schema(kind, place, 0)


def _schema(kind: Any, place: str, level: int) -> dict[str, Any]:
    if level > MAX_LEVELS:
        raise UsageError(f"{place}: {_ENDLESS}")
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:  # before others: it has the attributes of its type
        description = next((part for part in parts[1:] if isinstance(part, str)), "")
        return {
            **_schema(parts[0], place, level + 1),
            **({"description": description} if description else {}),
        }
    if states_schema(kind):
        schema = _stated(kind, place)
        inlined: dict[str, Any] = _inlined(schema, schema.get("$defs", {}), place, ())
        return inlined
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _of_dataclass(kind, place, level)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum(kind, [member.value for member in kind], place)
    if origin is typing.Literal:
        return _enum(
            kind, [member.value if isinstance(member, enum.Enum) else member for member in parts], place
        )
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(part, place, level + 1) for part in parts]}
    if origin in (list, set, frozenset, Sequence) or (origin is tuple and parts[-1:] == (...,)):
        unique = {"uniqueItems": True} if origin in (set, frozenset) else {}
        return {"type": "array", "items": _schema(parts[0], place, level + 1), **unique}
    if origin is tuple:
        items = [_schema(part, place, level + 1) for part in parts]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin in (dict, Mapping) and parts[0] is str:
        return {"type": "object", "additionalProperties": _schema(parts[1], place, level + 1)}
    try:
        return dict(_PLAIN[kind])
    except (KeyError, TypeError):
        raise UsageError(f"{place}: the type {kind!r:.80} has no schema; wanted {_KNOWN}") from None


def _enum(kind: Any, values: list[Any], place: str) -> dict[str, Any]:
    if not values or not all(value is None or isinstance(value, str | int | float) for value in values):
        raise UsageError(f"{place}: {kind!r:.80} has no schema; wanted texts, numbers or None")
    return {"enum": values}


def _of_dataclass(kind: type, place: str, level: int) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception as error:  # an annotation as text is any expression
        raise UsageError(f"{place}: its types cannot be read: {error}") from None
    fields = [field for field in dataclasses.fields(kind) if field.init]
    nothing = dataclasses.MISSING
    return {
        "type": "object",
        "properties": {
            field.name: _schema(hints[field.name], f"{place}.{field.name}", level + 1) for field in fields
        },
        "required": [
            field.name for field in fields if field.default is nothing and field.default_factory is nothing
        ],
        "additionalProperties": False,
    }


def _stated(kind: Any, place: str) -> dict[str, Any]:
    schema = kind.model_json_schema()
    if not isinstance(schema, dict):
        raise UsageError(f"{place}: {kind!r:.80} states no schema")
    return schema


def _inlined(schema: Schema, defined: Mapping[str, Any], place: str, within: tuple[str, ...]) -> Any:
    """A schema with what it refers to in its place: references count from the root of a schema."""
    if isinstance(schema, bool):
        return schema
    to = schema.get("$ref")
    stated = {word: value for word, value in schema.items() if word not in ("$ref", "$defs")}
    rest = with_subschemas(stated, lambda inner: _inlined(inner, defined, place, within))
    if not isinstance(to, str):
        return rest
    if to in within:
        raise UsageError(f"{place}: {_ENDLESS}")
    if to.removeprefix(_DEFINED) not in defined:
        raise UsageError(f"{place}: its schema refers to {to!r:.80}; wanted a part of its $defs")
    return {**_inlined(defined[to.removeprefix(_DEFINED)], defined, place, (*within, to)), **rest}
