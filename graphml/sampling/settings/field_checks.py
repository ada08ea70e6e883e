"""Checks of sampling settings whose types are not plain numbers: texts, ids, schemas.

Each gets the name of a setting and what was given for it, and returns the setting's value. Knows no setting.
"""

from __future__ import annotations

import json

from graphml.errors import UsageError
from graphml.options.argument_checks import items_of
from graphml.options.option_fields import Whole


def checked_texts(name: str, value: object) -> tuple[str, ...]:
    """Texts, none of them empty; a text stands for itself alone."""
    texts = [value] if isinstance(value, str) else items_of(name, value, "texts such as ('\\n',)")
    for text in texts:
        if not isinstance(text, str) or not text:
            raise UsageError(f"{name}: wanted strings that are not empty, got {text!r}")
    return tuple(texts)


def checked_breakers(name: str, value: object) -> tuple[str, ...]:
    """An empty text or `none` alone, as on the command line, means that there are none."""
    breakers = items_of(name, value, "a tuple of strings such as ('\\n',)")
    return () if breakers in ([""], ["none"]) else checked_texts(name, breakers)


def checked_token_ids(name: str, value: object) -> frozenset[int]:
    """Ids, whole numbers from 0."""
    return frozenset(
        Whole(0).read(name, token) for token in items_of(name, value, "a collection of token ids")
    )


def checked_flag(name: str, value: object) -> bool:
    """True or False, and no number."""
    if not isinstance(value, bool):
        raise UsageError(f"{name}: wanted True or False, got {value!r}")
    return value


def checked_json_text(name: str, value: object) -> str:
    """A schema as text, so that params can be compared: of a dict, a dataclass or a pydantic model."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict | bool):
        from graphml.sampling.schemas.type_schemas import schema_of_type

        value = schema_of_type(value)
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{name}: wanted a JSON schema as a text or a dict; {error}") from None


def opened_schema_text(text: str) -> str:
    """A schema that says of each object with properties that there may be others; other texts as they are."""
    from graphml.sampling.schemas.schema_closing import opened_schema

    try:
        return json.dumps(opened_schema(json.loads(text)))
    except (ValueError, RecursionError):  # it is refused where it is compiled
        return text
