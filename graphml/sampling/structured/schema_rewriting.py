"""Equivalent forms of JSON schemas: choices in place of `not`, `if`, `dependencies` and general `oneOf`.

Used where llguidance refuses a schema as it is. What has no equivalent form stays as it is, to be refused by
name. Knows schemas; nothing of llguidance or tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from graphml.sampling.structured.schema_choice import exactly_one
from graphml.sampling.structured.schema_evaluation import Evaluation
from graphml.sampling.structured.schema_negation import Negation, both, either, other_texts
from graphml.sampling.structured.schema_words import (
    ANNOTATIONS,
    ASSERTIONS,
    Schema,
    UnsupportedSchemaError,
    referred,
    with_subschemas,
)

_REWRITTEN: Final = (
    "not", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas", "propertyNames",
    "oneOf", "enum", "const",
)  # fmt: skip


def rewritten_schema(root: Schema) -> Schema:
    """An equivalent schema of simpler keywords; UnsupportedSchemaError names what has no simpler form."""
    if isinstance(root, bool):
        return root
    return _Rewriting(root).whole()


class _Rewriting:
    """One document: whatever a reference leads to becomes a definition of the new one, once."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._negation = Negation(root, self.rewritten)
        self._names: dict[str, str] = {}
        self._definitions: dict[str, Schema] = {}

    def whole(self) -> Schema:
        made = self.rewritten(self._root)
        if isinstance(made, bool):
            return made
        return {**made, "$defs": self._definitions} if self._definitions else made

    def rewritten(self, schema: Schema) -> Schema:
        """An equivalent schema; references lead to definitions of the new document."""
        if isinstance(schema, bool):
            return schema
        listed = self._listed(schema)
        if listed is not None:
            return listed
        plain = {
            word: one
            for word, one in schema.items()
            if word in ASSERTIONS and word not in ANNOTATIONS and word not in _REWRITTEN
        }
        made = with_subschemas(plain, self.rewritten)
        if "$ref" in made:
            made["$ref"] = self._definition(made["$ref"])
        if made.get("uniqueItems") is False or (made.get("uniqueItems") and made.get("maxItems", 2) < 2):
            del made["uniqueItems"]
        made.update({word: schema[word] for word in ("enum", "const") if word in schema})
        if "propertyNames" in schema:
            made = self._with_names(made, schema["propertyNames"])
        choices = self._choices(schema)
        if any(one is False for one in choices):
            return False
        choices = [one for one in choices if one is not True]
        if len(choices) == 1 and "anyOf" not in made and set(choices[0]) == {"anyOf"}:
            return {**made, **choices[0]}
        return {**made, "allOf": [*made.get("allOf", []), *choices]} if choices else made

    def _listed(self, schema: Mapping[str, Any]) -> Schema | None:
        """The listed values that are valid, where a schema lists its values; None where it lists none."""
        lists = [schema, *(one for one in schema.get("allOf", []) if isinstance(one, dict))]
        found = next((one for one in lists if "enum" in one or "const" in one), None)
        if found is None:
            return None
        word = "enum" if "enum" in found else "const"
        values = found["enum"] if word == "enum" else [found["const"]]
        besides = {  # each value is in its list: asked again, n values would take n * n comparisons
            key: [_without(one, word) if one is found else one for one in value] if key == "allOf" else value
            for key, value in (_without(schema, word) if found is schema else schema).items()
        }
        try:
            evaluation = Evaluation(self._root)
            kept = [one for one in values if evaluation.valid(besides, one)]
        except UnsupportedSchemaError:
            return None
        return {"enum": kept} if kept else False

    def _definition(self, reference: str) -> str:
        if reference not in self._names:
            name = self._names[reference] = f"d{len(self._names)}"
            self._definitions[name] = True
            self._definitions[name] = self.rewritten(referred(self._root, reference))
        return f"#/$defs/{self._names[reference]}"

    def _choices(self, schema: Mapping[str, Any]) -> list[Schema]:
        """The schemas that stand for a schema's rewritten keywords; all of them hold."""
        found: list[Schema] = []
        if "not" in schema:
            found.append(self._negation.of(schema["not"]))
        if "if" in schema and ("then" in schema or "else" in schema):
            test = schema["if"]
            then = both([self.rewritten(test), self.rewritten(schema.get("then", True))])
            otherwise = both([self._negation.of(test), self.rewritten(schema.get("else", True))])
            found.append(either([then, otherwise]))
        for word in ("dependencies", "dependentRequired", "dependentSchemas"):
            found += [self._dependency(name, one) for name, one in schema.get(word, {}).items()]
        if "oneOf" in schema:
            found.append(exactly_one(self._root, schema["oneOf"], self.rewritten, self._negation.of))
        return found

    def _dependency(self, name: str, needs: Any) -> Schema:
        if isinstance(needs, str):
            needs = [needs]
        if isinstance(needs, list):
            present: Schema = {"required": [name, *needs]}
        else:
            present = both([{"required": [name]}, self.rewritten(needs)])
        return either([{"properties": {name: False}}, present])

    def _with_names(self, made: dict[str, Any], names: Schema) -> dict[str, Any]:
        """The object's keywords with those of its names put into properties and patterns."""
        while isinstance(names, dict) and set(names) - ANNOTATIONS == {"$ref"}:
            names = referred(self._root, names["$ref"])
        if isinstance(names, bool):
            return made if names else {**made, "maxProperties": 0}
        words = {one: value for one, value in names.items() if one in ASSERTIONS and one not in ANNOTATIONS}
        if words.get("type") == "string":
            del words["type"]
        rest = made.get("additionalProperties", True)
        evaluation = Evaluation(self._root)
        properties = {
            name: one if evaluation.valid(names, name) else False
            for name, one in made.get("properties", {}).items()
        }
        if made.get("patternProperties") or (properties and rest is not True and rest is not False):
            raise UnsupportedSchemaError("propertyNames beside patternProperties is not supported")
        made = {**made, "properties": properties}
        if not words or rest is False:
            return made
        made["additionalProperties"] = False
        if set(words) == {"enum"} or set(words) == {"const"}:
            for name in words.get("enum", [words.get("const")]):
                properties.setdefault(name, rest)
        else:
            made["patternProperties"] = {_pattern_of(words): rest}
        return made


def _without(schema: Mapping[str, Any], word: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != word}


def _pattern_of(words: Mapping[str, Any]) -> str:
    """One regular expression for names."""
    if set(words) == {"pattern"}:
        return str(words["pattern"])
    if set(words) <= {"minLength", "maxLength"}:
        return f"^(?s:.){{{words.get('minLength', 0)},{words.get('maxLength', '')}}}$"
    refused = words.get("not")
    if set(words) == {"not"} and isinstance(refused, dict) and set(refused) in ({"enum"}, {"const"}):
        return other_texts(
            [one for one in refused.get("enum", [refused.get("const")]) if isinstance(one, str)]
        )
    raise UnsupportedSchemaError(f"propertyNames with {', '.join(sorted(words))} is not supported")
