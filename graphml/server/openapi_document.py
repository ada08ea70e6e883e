"""The OpenAPI document, made of the routes and of the types that decode their bodies.

Knows both; nothing of models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

import graphml
from graphml.server.responses.api_errors import MODEL_NOT_FOUND, TYPES, style_of

PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")
STATUSES = (400, 401, 403, 404, 409, 413, 429, 500, 501, 503)
ERRORS = {"openai": "Error", "anthropic": "AnthropicError", "ollama": "OllamaError"}
"""The schema of errors by their style."""


def openapi_document(
    routes: Iterable[tuple[str, str, str]],
    bodies: Mapping[str, type[msgspec.Struct]],
    queries: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """routes: method, path and what it is for; bodies: by path, what a body is decoded as.

    queries: by method and path, the parameters behind the question mark: name -> schema.
    """
    template = "#/components/schemas/{name}"
    kinds = list(dict.fromkeys(bodies.values()))
    references, schemas = msgspec.json.schema_components(kinds, ref_template=template)
    for schema in schemas.values():
        _take_null(schema)
    reference_of = dict(zip(kinds, references, strict=True))
    codes = {
        kind: {str(code): {"$ref": f"#/components/responses/{kind}"} for code in STATUSES}
        for kind in ERRORS.values()
    }
    paths: dict[str, dict[str, Any]] = {}
    for method, path, about in routes:
        operation: dict[str, Any] = {
            "summary": about, "responses": {
                "200": {"description": "The answer."},
                **codes[ERRORS[style_of(path)]],
            },
        }  # fmt: skip
        queried = queries.get(f"{method} {path}", {})
        asked = [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in queried.items()
        ]
        names = [(match[1], match[2]) for match in PARAMETER.finditer(path)]
        if names or asked:
            operation["parameters"] = asked + [
                {"name": name, "in": "path", "required": True,
                 "schema": {"type": "integer" if kind == "int" else "string"}}
                for name, kind in names
            ]  # fmt: skip
        if path in bodies:
            content = {"application/json": {"schema": reference_of[bodies[path]]}}
            needed = "action" not in queried  # some actions read none
            operation["requestBody"] = {"required": needed, "content": content}
        paths.setdefault(PARAMETER.sub(r"{\1}", path), {})[method.lower()] = operation
    error = {
        "type": "object", "required": ["error"],
        "properties": {"error": {
            "type": "object", "required": ["code", "message", "type"],
            "properties": {"code": {"anyOf": [{"type": "integer"}, {"const": MODEL_NOT_FOUND}]},
                           "message": {"type": "string"},
                           "type": {"enum": sorted({*TYPES.values(), "exceed_context_size_error"})}},
        }},
    }  # fmt: skip
    anthropic = {
        "type": "object", "required": ["type", "error"],
        "properties": {"type": {"const": "error"}, "error": {
            "type": "object", "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        }},
    }  # fmt: skip
    ollama = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "graphml serve", "version": graphml.__version__},
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Error": error, "AnthropicError": anthropic, "OllamaError": ollama},
            "responses": {kind: _wrong(kind) for kind in codes},
        },
    }


def _take_null(schema: dict[str, Any]) -> None:
    """Let null stand for a field that is not there, as the decoder does."""
    needed = schema.get("required", ())
    for name, field in schema["properties"].items():
        kinds = field.get("anyOf", [field])
        if name not in needed and field and {"type": "null"} not in kinds:
            kept = {key: field.pop(key) for key in ("default", "description") if key in field}
            schema["properties"][name] = {"anyOf": [*field.get("anyOf", [field]), {"type": "null"}], **kept}


def _wrong(kind: str) -> dict[str, Any]:
    shown = {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind}"}}}
    return {"description": "What went wrong.", "content": shown}
