"""Rows of `graphml bench -o json` and of suites, read again from their files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from graphml.bench.result_rows import SAMPLES, ResultRow
from graphml.errors import UsageError


def read_rows(paths: Sequence[Path]) -> list[ResultRow]:
    """All rows of JSON lists in these files; UsageError for a file that has others."""
    names = {one.name for one in fields(ResultRow)}
    rows = []
    for path in paths:
        try:
            for stored in json.loads(path.read_text(encoding="utf-8")):
                known = {name: value for name, value in stored.items() if name in names}
                rows.append(ResultRow(**{**known, **{name: tuple(known[name]) for name in SAMPLES}}))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"{path}: wanted the JSON of `graphml bench -o json`: {error!r:.200}") from None
    return rows
