"""JSON schemas as structures: by llguidance as they are or in an equivalent form, else refused.

Nothing is ignored but annotations, and names of formats that nobody checks. A refusal names the place.
What is generated follows the schema with its silent objects closed. Knows schemas and llguidance's adapter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from graphml.errors import UsageError
from graphml.sampling.schemas.schema_choice import with_choices
from graphml.sampling.schemas.schema_closing import closed_schema, rooted_schema
from graphml.sampling.schemas.schema_words import (
    Schema,
    UnsupportedSchemaError,
    check_words,
    checked_schema,
    placed,
    referred,
    with_subschemas,
)
from graphml.sampling.structured.llguidance_structure import LlguidanceStructure, library
from graphml.sampling.structured.opened_tokens import opened_tokens
from graphml.sampling.structured.token_bytes import TokenBytes

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


def schema_of_part(text: str, closed: bool = True) -> Schema:
    """The schema, JSON of it, as it can be a part of another grammar: what generated texts follow.

    Its references lead to its own `$defs`. closed: as `generated_structure`. Errors of `schema_structure`.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"json_schema: wanted JSON; {error}") from None
    checked = _checked(schema)
    for form in (closed_schema,) * closed + (rooted_schema,):
        with suppress(UsageError):
            return _supported(form(checked), opened_tokens(None), _SOME_SPACE)[0]
    return _supported(checked, opened_tokens(None), _SOME_SPACE)[0]


def _checked(schema: Schema) -> Schema:
    return check_words(checked_schema(schema))


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
