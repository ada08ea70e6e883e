"""Grammars and schemas that the command line names by their files.

Knows files and sampling parameters; nothing of grammars.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

from graphml.errors import UsageError
from graphml.sampling import SamplingParams

MAX_BYTES: Final = 1 << 22


def with_files(params: SamplingParams, grammar: Path | None, schema: Path | None) -> SamplingParams:
    """The parameters with what the files hold; UsageError naming a file that cannot be read."""
    given = {"grammar": grammar, "json_schema": schema}
    found: dict[str, Any] = {name: _text_of(file) for name, file in given.items() if file is not None}
    return dataclasses.replace(params, **found) if found else params


def _text_of(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UsageError(f"{file}: at most {MAX_BYTES} bytes are wanted")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: {error}") from None
