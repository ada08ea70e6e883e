"""Builds the page: assets, document, and a content security policy that allows nothing else to run."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from graphml.inspect.viewer.columns import encode

FORMAT = "graphml-1"
# In the order in which they use each other.
SCRIPTS = (
    "document",
    "model",
    "layout",
    "changes",
    "overlay",
    "rail",
    "pane",
    "cards",
    "moves",
    "panel",
    "table",
    "memory",
    "fusions",
    "search",
    "keys",
    "main",
)


def render(document: Mapping[str, Any]) -> str:
    """The HTML page that draws a document of the format `graphml-1`.

    `view` in the document is the initial view, with the keys of the page's address: {"view": "compare",
    "overlay": "change", "pass": NAME, "left": NAME, "node": NAME}, all of them optional.

    The page is complete: it reads nothing from the network or from files, and its policy forbids it. Raises
    ValueError for another format and for a document without passes.
    """
    if document.get("format") != FORMAT:
        raise ValueError(f"document: wanted the format {FORMAT!r}; got {document.get('format')!r}")
    if not document.get("passes"):
        raise ValueError("document: wanted at least one pass; got none")
    style = _asset("base.css") + _asset("style.css")
    body = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{body}\nstart();\n}})();\n'
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)};"
        " base-uri 'none'; form-action 'none'"
    )
    page = _asset("page.html")
    parts = {
        "POLICY": policy,
        "TITLE": html.escape(f"{document.get('model', 'graph')} - graphml"),
        "STYLE": style,
        "DOCUMENT": encode(document),
        "SCRIPT": script,
    }
    pieces = page.split("%%")
    # All marks are replaced in one go, so no text of the document is replaced.
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def _asset(name: str) -> str:
    return files("graphml.inspect.viewer").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
