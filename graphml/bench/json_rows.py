"""Rows that are dataclasses as a JSON list, written one by one. Knows no row in particular."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Any


def as_json(found: Iterable[Any]) -> Iterator[str]:
    """A list of all rows, each written once it is measured."""
    separator = "["
    for row in found:
        yield f"{separator}\n  {json.dumps(dataclasses.asdict(row), allow_nan=False)}"
        separator = ","
    yield "\n]\n" if separator == "," else "[]\n"
