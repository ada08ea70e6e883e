"""Whether the keywords of a JSON schema have values of the right kind; errors name the place.

Knows keywords; nothing of what they mean for a text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from graphml.errors import UsageError
from graphml.sampling.schemas.schema_words import LISTS, MAPS, SINGLE, Schema

_NAMES: Final = ("null", "boolean", "object", "array", "number", "integer", "string")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return _number(value) and value >= 0 and float(value).is_integer()


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _schemas(value: Any) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(isinstance(schema, dict | bool) for schema in value)
    )


def _type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _NAMES for name in names)


_COUNTS: Final = (
    "maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties",
    "minContains", "maxContains",
)  # fmt: skip
_WANTED: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    **dict.fromkeys(_COUNTS, (_count, "a whole number, 0 or more")),
    "type": (_type, f"one of {', '.join(_NAMES)}, or a list of them"),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "required": (lambda value: _texts(value) or isinstance(value, bool), "a list of strings"),
    "dependentRequired": (
        lambda value: isinstance(value, dict) and all(_texts(texts) for texts in value.values()),
        "an object of lists of strings",
    ),
    "multipleOf": (lambda value: _number(value) and value > 0, "a number above 0"),
    "maximum": (_number, "a number"),
    "minimum": (_number, "a number"),
    "exclusiveMaximum": (lambda value: _number(value) or isinstance(value, bool), "a number"),
    "exclusiveMinimum": (lambda value: _number(value) or isinstance(value, bool), "a number"),
    "pattern": (lambda value: isinstance(value, str), "a string"),
    "format": (lambda value: isinstance(value, str), "a string"),
    "$ref": (lambda value: isinstance(value, str), "a string"),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "items": (lambda value: isinstance(value, dict | bool | list), "a schema, or a list of schemas"),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), (_schemas, "a list of schemas, at least one")),
}


def check_words(schema: Schema) -> Schema:
    """The schema as it came; UsageError with the path of a keyword whose value is of a wrong kind."""
    for place, subschema in placed(schema):
        for word, value in subschema.items():
            if word in _WANTED and not _WANTED[word][0](value):
                _fail(f"{place}/{word}", _WANTED[word][1], value)
    return schema


def placed(schema: Schema) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schema and all inside it, true and false left out, each with its path from "#" on.

    UsageError for what is none where one is wanted.
    """
    todo: list[tuple[str, Any]] = [("#", schema)]
    while todo:
        place, subschema = todo.pop()
        if isinstance(subschema, bool):
            continue
        if not isinstance(subschema, dict):
            _fail(place, "a schema (an object, true or false)", subschema)
        yield place, subschema
        for word, value in subschema.items():
            inner = f"{place}/{word}"
            if word in MAPS:
                if not isinstance(value, dict):
                    _fail(inner, "an object", value)
                for name, each in value.items():
                    if word != "dependencies" or not isinstance(each, str | list):
                        todo.append((f"{inner}/{name}", each))
            elif word in LISTS and isinstance(value, list):
                todo += [(f"{inner}/{index}", each) for index, each in enumerate(value)]
            elif word in SINGLE:
                todo.append((inner, value))


def _fail(place: str, wanted: str, got: Any) -> NoReturn:
    raise UsageError(f"json_schema, at {place}: wanted {wanted}, got {json.dumps(got):.60}")
