"""JSON schemas as structures: by llguidance as they are or in an equivalent form, else refused.

Nothing is ignored but annotations, and names of formats that nobody checks. A refusal names the place.
What is generated follows the schema with its silent objects closed. Knows schemas and llguidance's adapter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import combinations
from typing import Any, Final

from graphml.errors import UsageError
from graphml.sampling.schemas.schema_closing import closed_schema, rooted_schema
from graphml.sampling.schemas.schema_words import (
    ANNOTATIONS,
    ASSERTIONS,
    Schema,
    UnsupportedSchemaError,
    check_multiples,
    check_patterns,
    check_words,
    checked_schema,
    placed,
    referred,
    with_subschemas,
)
from graphml.sampling.structured.llguidance_structure import LlguidanceStructure, library
from graphml.sampling.structured.opened_tokens import opened_tokens
from graphml.sampling.structured.token_bytes import TokenBytes

TYPES: Final = ("null", "boolean", "object", "array", "number", "string")
MAX_BRANCHES: Final = 200
MAX_LEVELS: Final = 6
_MAX_PARTS: Final = 200
MOST_LEFT_OUT: Final = 16
_FORCED: Final = "|".join(sorted(ASSERTIONS - {"$ref", "patternProperties"}))
_PLACE: Final = re.compile(rf"json_schema, at (\S*/(?:({_FORCED})|(patternProperties)/\S*)): ")

_OF_TYPE: Final = {
    "number": {"multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"},
    "string": {"maxLength", "minLength", "pattern", "format"},
    "array": {
        "items", "prefixItems", "additionalItems", "maxItems", "minItems", "uniqueItems", "contains",
        "minContains", "maxContains", "unevaluatedItems",
    },
    "object": {
        "maxProperties", "minProperties", "required", "properties", "patternProperties",
        "additionalProperties", "propertyNames", "dependencies", "dependentRequired", "dependentSchemas",
        "unevaluatedProperties",
    },
}  # fmt: skip
_DEPENDING: Final = ("dependencies", "dependentRequired", "dependentSchemas")


def with_choices(root: Schema) -> Schema:
    """The document with `anyOf` in place of `oneOf` and of dependencies.

    Raises UnsupportedSchemaError, whose `schema` is the one in the document with such a `oneOf`, where two
    branches may hold for one value.
    """

    def changed(schema: Schema) -> Schema:
        if isinstance(schema, bool):
            return schema
        rewritten = with_subschemas(schema, changed)
        choices: list[Schema] = []
        for word in _DEPENDING:
            choices += [_dependency(name, needs) for name, needs in rewritten.pop(word, {}).items()]
        branches = rewritten.pop("oneOf", None)
        if branches is not None:
            try:
                choices += _exclusive(root, schema, branches)
            except UnsupportedSchemaError as error:
                raise UnsupportedSchemaError(str(error), schema) from None
        if any(branch is False for branch in choices):
            return False
        if len(choices) == 1 and "anyOf" not in rewritten:
            return {**rewritten, **choices[0]}
        return {**rewritten, "allOf": [*rewritten.get("allOf", []), *choices]} if choices else rewritten

    return changed(root)


def _dependency(name: str, needs: Any) -> Schema:
    if isinstance(needs, dict | bool):
        present: Schema = {"required": [name], "allOf": [needs]}
    else:
        present = {"required": [name, *([needs] if isinstance(needs, str) else needs)]}
    return {"anyOf": [{"properties": {name: False}}, present]}


def _exclusive(root: Schema, schema: Mapping[str, Any], branches: Sequence[Schema]) -> list[Schema]:
    """Schemas that together say what the `oneOf` of a schema says; branches: in their new form."""
    listed = schema["oneOf"]
    if len(listed) > MAX_BRANCHES:
        raise UnsupportedSchemaError(f"at most {MAX_BRANCHES} branches are supported")
    by_names = all(map(_only_requires, listed))
    typed = {"type": schema.get("type", list(TYPES))}
    kinds, possible_kinds = [], [kind for kind in TYPES if _may_hold(root, typed, kind)]
    for kind in possible_kinds:
        possible = [i for i, branch in enumerate(listed) if _may_hold(root, branch, kind)]
        if not possible or sum(_always_holds(root, listed[i], kind) for i in possible) > 1:
            continue
        kinds.append(kind)
        if kind == "object" and by_names:
            continue
        for i, j in combinations(possible, 2):
            if not _disjoint(root, listed[i], listed[j], kind, MAX_LEVELS):
                raise UnsupportedSchemaError(
                    f"branches {i} and {j} may both hold for {kind}s, or it cannot be shown that they do not"
                )
    if by_names:
        branches = [*_by_names(listed), *({"type": kind} for kind in kinds if kind != "object")]
    if not kinds or not branches:
        return [False]
    return [{"anyOf": list(branches)}, *([{"type": kinds}] if kinds != possible_kinds else [])]


def _only_requires(schema: Schema) -> bool:
    """Whether a schema says no more than which names an object has."""
    words = schema.keys() - ANNOTATIONS if isinstance(schema, dict) else {"other"}
    return "required" in words and words <= {"required", "type"} and schema.get("type", "object") == "object"


def _by_names(branches: Sequence[Mapping[str, Any]]) -> list[Schema]:
    """The branches, each with what makes all others false: one of the names they require is not there."""
    schemas: list[Schema] = []
    for branch in branches:
        others = [
            [name for name in other["required"] if name not in branch["required"]]
            for other in branches
            if other is not branch
        ]
        if all(others):
            absent = [{"anyOf": [{"properties": {name: False}} for name in names]} for names in others]
            schemas.append({"type": "object", "required": branch["required"], "allOf": absent})
    return schemas


def _resolved(root: Schema, schema: Schema) -> list[Mapping[str, Any]] | None:
    """The schemas that all hold where this one does, references followed; None where it never holds."""
    parts: list[Mapping[str, Any]] = []
    todo = [schema]
    while todo:
        part = todo.pop()
        if part is False:
            return None
        if isinstance(part, bool):
            continue
        parts.append(part)
        if len(parts) > _MAX_PARTS:
            raise UnsupportedSchemaError("its branches refer to too many schemas")
        todo += part.get("allOf", [])
        if "$ref" in part:
            todo.append(referred(root, part["$ref"]))
    return parts


def _may_hold(root: Schema, schema: Schema, kind: str) -> bool:
    parts = _resolved(root, schema)
    if parts is None:
        return False
    for part in parts:
        names = part.get("type", kind)
        names = names if isinstance(names, list) else [names]
        if kind not in names and not (kind == "number" and "integer" in names):
            return False
        values = _values(part)
        if values is not None and kind not in {_type_of(value) for value in values}:
            return False
    return True


def _always_holds(root: Schema, schema: Schema, kind: str) -> bool:
    """Whether it takes every value of a type, as far as its keywords show."""
    for part in _resolved(root, schema) or ():
        names = part.get("type", kind)
        if kind not in (names if isinstance(names, list) else [names]):
            return False
        said = {word for word in part if word in ASSERTIONS and word not in ANNOTATIONS}
        other = set().union(*(words for of, words in _OF_TYPE.items() if of != kind))
        if said - other - {"type", "allOf", "$ref"}:
            return False
    return True


def _disjoint(root: Schema, a: Schema, b: Schema, kind: str, levels: int) -> bool:
    """Whether no value of a type is valid under both, as far as can be shown."""
    if not levels:
        return False
    parts_a, parts_b = _resolved(root, a), _resolved(root, b)
    if parts_a is None or parts_b is None:
        return True
    lists_a, lists_b = ([_values(part) for part in parts] for parts in (parts_a, parts_b))
    for values_a in lists_a:
        for other in lists_b:
            if (
                values_a is not None
                and other is not None
                and not set(map(_key, values_a)) & set(map(_key, other))
            ):
                return True
    return kind == "object" and (
        _properties_exclude(root, parts_a, parts_b, levels)
        or _properties_exclude(root, parts_b, parts_a, levels)
    )


def _properties_exclude(
    root: Schema, parts: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], levels: int
) -> bool:
    """Whether a property that the first require excludes all objects of the others."""
    required = {name for part in parts for name in part.get("required", []) if isinstance(name, str)}
    for name in required:
        schema = {"allOf": [part["properties"][name] for part in parts if name in part.get("properties", {})]}
        for part in others:
            named = part.get("properties", {})
            if name not in named:
                if part.get("additionalProperties") is False and not part.get("patternProperties"):
                    return True
                continue
            if all(
                not _may_hold(root, schema, kind)
                or not _may_hold(root, named[name], kind)
                or _disjoint(root, schema, named[name], kind, levels - 1)
                for kind in TYPES
            ):
                return True
    return False


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that a schema lists; None where it lists none."""
    values: list[Any] | None = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return values


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {type(None): "null", dict: "object", list: "array", str: "string"}
    return kinds.get(type(value), "number")


def _key(value: Any) -> Any:
    """The same for values that are equal in JSON, where 1 is 1.0 and no boolean."""
    if isinstance(value, dict):
        return "object", frozenset((name, _key(member)) for name, member in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_key, value))
    return _type_of(value), value


_FREE_SPACE = {"whitespace_flexible": True}
_SOME_SPACE = {"whitespace_flexible": True, "whitespace_pattern": r" |\n[ \t]{0,32}"}
"""Models may write spaces for ever where they may: one, or a line's end and some, as in llama.cpp."""


def generated_structure(schema: Schema, vocabulary: TokenBytes) -> LlguidanceStructure:
    """Compile a schema for texts that a model writes: in the schema's order, and no endless space.

    Objects that list properties and are silent on others are closed, where that can be compiled.
    """
    try:
        return schema_structure(closed_schema(_checked(schema)), vocabulary, _SOME_SPACE)
    except UsageError:  # what is wrong is told of the schema as it came
        return schema_structure(schema, vocabulary, _SOME_SPACE)


def schema_structure(
    schema: Schema, vocabulary: TokenBytes, options: Mapping[str, Any] = _FREE_SPACE
) -> LlguidanceStructure:
    """Compile a schema, a dict or bool as json.loads gives it; options: of llguidance.

    UsageError for what is no schema, and for a keyword or a use of one that is not supported.
    """
    return _supported(schema, vocabulary, options)[1]


def schema_of_text(text: str) -> object:
    """What JSON has; UsageError for what is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"json_schema: wanted JSON; {error}") from None


def schema_of_part(text: str, closed: bool = True) -> Schema:
    """The schema, JSON of it, as it can be a part of another grammar: what generated texts follow.

    Its references lead to its own `$defs`. closed: as `generated_structure`. Errors of `schema_structure`.
    """
    checked = _checked(schema_of_text(text))
    for form in (closed_schema,) * closed + (rooted_schema,):
        with suppress(UsageError):
            return _supported(form(checked), opened_tokens(None), _SOME_SPACE)[0]
    return _supported(checked, opened_tokens(None), _SOME_SPACE)[0]


def forceable_part(text: str, closed: bool = True) -> tuple[Schema, tuple[str, ...]]:
    """As `schema_of_part`, but what cannot be forced is left out: the schema, and the places of that.

    A value of the schema as it came is one of this; of a `oneOf` whose branches overlap, one branch holds.
    """
    left_out: list[str] = []
    while True:
        try:
            return schema_of_part(text, closed), tuple(left_out)
        except UsageError as error:
            place = _PLACE.match(str(error))
            if place is None or len(left_out) == MOST_LEFT_OUT:
                raise
            left_out.append(place[1])
            text = json.dumps(_without_word(json.loads(text), place[2] or place[3]))


def _without_word(schema: Schema, word: str) -> Schema:
    if not isinstance(schema, dict):
        return schema
    rewritten = with_subschemas(schema, lambda inner: _without_word(inner, word))
    stated = rewritten.pop(word, None)
    if word == "oneOf" and stated is not None:
        rewritten["allOf"] = [*rewritten.get("allOf", []), {"anyOf": stated}]
    return rewritten


def _checked(schema: Schema) -> Schema:
    return check_multiples(check_patterns(check_words(checked_schema(schema))))


def _supported(
    schema: Schema, vocabulary: TokenBytes, options: Mapping[str, Any]
) -> tuple[Schema, LlguidanceStructure]:
    """The form of a schema that llguidance takes, and that compiled."""
    checked = _without_idle_words(_checked(schema))
    if checked is False:
        raise UsageError("json_schema: no value is valid under it")
    structure = _compiled(checked, vocabulary, options)
    if not structure.error:
        return checked, structure
    try:
        simpler = with_choices(checked)
    except UnsupportedSchemaError as error:
        place = next((place for place, subschema in placed(checked) if subschema is error.schema), "#")
        raise UsageError(f"json_schema, at {place}/oneOf: {error}") from None
    if simpler is False:
        raise UsageError("json_schema: no value is valid under it")
    again = _compiled(simpler, vocabulary, options)
    if again.error:
        raise UsageError(_refused(checked, again.error))
    return simpler, again


def _refused(schema: Schema, error: str) -> str:
    """What llguidance says, with the first place in the schema that it is about."""
    unknown = re.match(r"Unimplemented keys: (\[.*\])", error)
    words = json.loads(unknown[1]) if unknown else []
    for place, subschema in placed(schema):
        for word in subschema:
            if word in words:
                return f"json_schema, at {place}/{word}: {word} is not supported"
        try:
            referred(schema, subschema.get("$ref", "#"))
        except UnsupportedSchemaError as nowhere:
            return f"json_schema, at {place}/$ref: {nowhere}"
        patterns = {"pattern": subschema.get("pattern", "")}
        patterns |= {
            f"patternProperties/{pattern}": pattern for pattern in subschema.get("patternProperties", {})
        }
        for word, pattern in patterns.items():
            if pattern and "regex" in error and pattern in error:
                return f"json_schema, at {place}/{word}: {_in_one_line(error)}"
    return f"json_schema: {_in_one_line(error)}"


def _compiled(
    schema: Schema, vocabulary: TokenBytes, options: Mapping[str, Any] = _FREE_SPACE
) -> LlguidanceStructure:
    # The schema of a hostile caller has no say in how it is read.
    text = json.dumps({**schema, "x-guidance": {}} if isinstance(schema, dict) else {})
    try:
        grammar = library().LLMatcher.grammar_from_json_schema(text, overrides=options)
    except ValueError as error:  # its own reader of JSON: of what is nested too deep
        raise UsageError(f"json_schema: {error}") from None
    return LlguidanceStructure(grammar, vocabulary)


def _in_one_line(error: str) -> str:
    """Its first line; of an expression that is wrong the expression and the reason, which are below."""
    first, *below = (line.strip() for line in error.strip().splitlines())
    if not first.endswith(":") or not below:
        return first
    reason = next((line.removeprefix("error: ") for line in below if line.startswith("error: ")), below[-1])
    return f"{first.removesuffix(':')} in {below[0]!r:.80}: {reason}"


def _without_idle_words(schema: Schema) -> Schema:
    """Without formats that nobody checks, and without a uniqueItems that every list meets."""
    if isinstance(schema, bool):
        return schema
    rewritten = with_subschemas(schema, _without_idle_words)
    if "format" in rewritten and not _is_known_format(str(rewritten["format"])):
        del rewritten["format"]
    if "uniqueItems" in rewritten and (not rewritten["uniqueItems"] or rewritten.get("maxItems", 2) < 2):
        del rewritten["uniqueItems"]
    return rewritten


@lru_cache(maxsize=256)
def _is_known_format(name: str) -> bool:
    return not _compiled({"type": "string", "format": name}, opened_tokens(None)).error
