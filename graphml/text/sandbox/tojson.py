"""The filter `tojson`: JSON in the form of Hugging Face's chat templates, written within the budget."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from graphml.errors import TemplateError
from graphml.text.sandbox.budget import CURRENT

LONGEST_SEPARATOR = 32


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON in the form of Hugging Face's chat templates: no HTML escapes, ASCII escapes on demand."""
    budget = CURRENT.get()
    _check_layout(indent, separators)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if isinstance(value, Mapping) and sort_keys:
        budget.labour(budget.weigh(value) * max(1, len(value).bit_length()))
    if indent is None:
        budget.room(budget.weigh(value) + 6)
        return encoder.encode(value)
    # Indentation grows with the depth, so the size is known only while it is written.
    parts: list[str] = []
    size = 0
    for part in encoder.iterencode(value):
        size += len(part)
        budget.places(len(parts))
        budget.room(size)
        parts.append(part)
    return "".join(parts)


def _check_layout(indent: Any, separators: Any) -> None:
    width = len(indent) if isinstance(indent, str) else indent
    if width is not None and (not isinstance(width, int) or width > LONGEST_SEPARATOR):
        raise TemplateError(
            f"tojson: wanted an indent of at most {LONGEST_SEPARATOR} characters, got {width!r}"
        )
    if separators is not None and (
        not isinstance(separators, (list, tuple))
        or any(not isinstance(part, str) or len(part) > LONGEST_SEPARATOR for part in separators)
    ):
        raise TemplateError(f"tojson: wanted two separators of at most {LONGEST_SEPARATOR} characters")
