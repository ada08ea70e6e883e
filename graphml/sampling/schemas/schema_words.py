"""Where a JSON schema holds other schemas, which of its keywords say nothing, and where its references lead.

Checks that keywords have values of the right kind; errors name the place. Knows the vocabulary of JSON Schema
(drafts 4 to 2020-12); evaluates and compiles nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from math import lcm
from typing import Any, Final, NoReturn, TypeAlias
from urllib.parse import unquote

from graphml.errors import UsageError

Schema: TypeAlias = Any  # bool or dict[str, Any], as json.loads gives it; checked by `checked_schema`

MAX_DEPTH: Final = 200
MAX_NODES: Final = 200_000

MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
SINGLE: Final = (
    "additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames",
    "additionalItems", "unevaluatedItems", "unevaluatedProperties", "contentSchema",
)  # fmt: skip
ANNOTATIONS: Final = frozenset([
    "title", "description", "default", "examples", "example", "$comment", "$schema", "$id", "id", "$anchor",
    "$defs", "definitions", "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType",
    "contentSchema", "$vocabulary",
])  # fmt: skip
ASSERTIONS: Final = frozenset([
    "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum",
    "maxLength", "minLength", "pattern", "format", "items", "prefixItems", "additionalItems", "maxItems",
    "minItems", "uniqueItems", "contains", "minContains", "maxContains", "maxProperties", "minProperties",
    "required", "properties", "patternProperties", "additionalProperties", "propertyNames", "dependencies",
    "dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties", "allOf", "anyOf",
    "oneOf", "not", "if", "then", "else", "$ref", "$recursiveRef", "$dynamicRef",
])  # fmt: skip


class UnsupportedSchemaError(Exception):
    """A keyword, or a use of one, that cannot be translated; schema: the one that has it, where known."""

    def __init__(self, text: str, schema: Schema = None) -> None:
        super().__init__(text)
        self.schema = schema


def checked_schema(schema: Schema) -> Schema:
    """A schema as it came; UsageError for what is no schema, nested too deeply, or too large."""
    if not isinstance(schema, dict | bool):
        raise UsageError(f"json_schema: wanted a dict or bool, got {type(schema).__name__}")
    todo: list[tuple[Any, int]] = [(schema, 0)]
    count = 0
    while todo:
        value, depth = todo.pop()
        count += 1
        if depth > MAX_DEPTH or count > MAX_NODES:
            raise UsageError(
                f"json_schema: at most {MAX_DEPTH} levels and {MAX_NODES} values are wanted, it has more"
            )
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise UsageError("json_schema: its keys must be strings")
            todo += [(inner, depth + 1) for inner in value.values()]
        elif isinstance(value, list):
            todo += [(inner, depth + 1) for inner in value]
        elif value is not None and not isinstance(value, str | int | float):
            raise UsageError(f"json_schema: JSON's types are wanted, got {type(value).__name__}")
    return schema


def with_subschemas(schema: Mapping[str, Any], change: Callable[[Schema], Schema]) -> dict[str, Any]:
    """A copy in which each schema directly inside is replaced by what `change` makes of it."""
    rewritten = dict(schema)
    for word in MAPS:
        if isinstance(rewritten.get(word), dict):
            rewritten[word] = {
                name: change(subschema) if isinstance(subschema, dict | bool) else subschema
                for name, subschema in rewritten[word].items()
            }
    for word in LISTS:
        if isinstance(rewritten.get(word), list):
            rewritten[word] = [change(subschema) for subschema in rewritten[word]]
    for word in SINGLE:
        if isinstance(rewritten.get(word), dict | bool):
            rewritten[word] = change(rewritten[word])
    return rewritten


def every_schema(schema: Schema) -> Iterator[dict[str, Any]]:
    """The schema and all inside it, true and false left out."""
    todo = [schema]
    while todo:
        subschema = todo.pop()
        if isinstance(subschema, dict):
            yield subschema
            with_subschemas(subschema, lambda inner: todo.append(inner) or inner)  # type: ignore[func-returns-value]


def referred(root: Schema, reference: str) -> Schema:
    """What a reference inside the document leads to; UnsupportedSchemaError for any other one.

    A pointer without its `#`, as LiteLLM writes it to Anthropic, is one, too.
    """
    if not isinstance(reference, str) or not reference.startswith(("#", "/")):
        raise UnsupportedSchemaError(f"$ref {reference!r:.80} leads out of the schema")
    place: Any = root
    path = unquote(reference.removeprefix("#"))
    if path and not path.startswith("/"):
        for subschema in every_schema(root):
            if subschema.get("$anchor") == path or path == str(
                subschema.get("$id", subschema.get("id", ""))
            ).lstrip("#"):
                return subschema
        raise UnsupportedSchemaError(f"$ref {reference!r:.80} leads nowhere")
    for part in path.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict) and name in place:
            place = place[name]
        elif isinstance(place, list) and name.isdigit() and int(name) < len(place):
            place = place[int(name)]
        else:
            raise UnsupportedSchemaError(f"$ref {reference!r:.80} leads nowhere")
    if not isinstance(place, dict | bool):
        raise UnsupportedSchemaError(f"$ref {reference!r:.80} leads to no schema")
    return place


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


MOST_PATTERN: Final = 16 << 10
"""Characters of an expression, or of all of a schema: memory grows with the square, 800 MB for 120,000."""


def check_patterns(schema: Schema) -> Schema:
    """The schema as it came; UsageError with the path of a pattern where all together are too long."""
    together = 0
    for place, subschema in placed(schema):
        for text in (subschema.get("pattern", ""), *subschema.get("patternProperties", ())):
            together += len(text)
            if together > MOST_PATTERN:
                raise UsageError(
                    f"json_schema, at {place}: at most {MOST_PATTERN} characters of patterns are wanted"
                )
    return schema


MOST_REMAINDERS: Final = 10_000


def check_multiples(schema: Schema) -> Schema:
    """The schema as it came; UsageError with the path of a `multipleOf` for which too much is counted.

    llguidance has a state for each remainder of all of them together: of one prime near a million they take
    14 s and 700 MB, and of ten primes near a thousand they end the process.
    """
    together = 1
    for place, subschema in placed(schema):
        if "multipleOf" not in subschema:
            continue
        step = Fraction(str(subschema["multipleOf"])).numerator
        together = lcm(together, step)
        if together > MOST_REMAINDERS:
            raise UsageError(
                f"json_schema, at {place}/multipleOf: {step} is not supported: the least common multiple of "
                f"all, without decimal points, is above {MOST_REMAINDERS:,}"
            )
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
