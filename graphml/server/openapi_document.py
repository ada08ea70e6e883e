"""The OpenAPI document, made of the routes and of the types that decode their bodies.

Knows both; nothing of models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

import graphml
from graphml.server.api_errors import TYPES

PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")


def openapi_document(
    routes: Iterable[tuple[str, str, str]], bodies: Mapping[str, type[msgspec.Struct]]
) -> dict[str, Any]:
    """routes: method, path and what it is for; bodies: by path, what a body is decoded as."""
    template = "#/components/schemas/{name}"
    kinds = list(dict.fromkeys(bodies.values()))
    references, schemas = msgspec.json.schema_components(kinds, ref_template=template)
    reference_of = dict(zip(kinds, references, strict=True))
    codes = {
        str(code): {"$ref": "#/components/responses/Error"} for code in (400, 401, 413, 429, 500, 501, 503)
    }
    paths: dict[str, dict[str, Any]] = {}
    for method, path, about in routes:
        operation: dict[str, Any] = {
            "summary": about, "responses": {"200": {"description": "The answer."}, **codes},
        }  # fmt: skip
        names = [(found[1], found[2]) for found in PARAMETER.finditer(path)]
        if names:
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True,
                 "schema": {"type": "integer" if kind == "int" else "string"}}
                for name, kind in names
            ]  # fmt: skip
        if path in bodies:
            content = {"application/json": {"schema": reference_of[bodies[path]]}}
            operation["requestBody"] = {"required": True, "content": content}
        paths.setdefault(PARAMETER.sub(r"{\1}", path), {})[method.lower()] = operation
    error = {
        "type": "object", "required": ["error"],
        "properties": {"error": {
            "type": "object", "required": ["code", "message", "type"],
            "properties": {"code": {"type": "integer"}, "message": {"type": "string"},
                           "type": {"enum": sorted({*TYPES.values(), "exceed_context_size_error"})}},
        }},
    }  # fmt: skip
    shown = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "graphml serve", "version": graphml.__version__},
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Error": error},
            "responses": {"Error": {"description": "What went wrong.", "content": shown}},
        },
    }
