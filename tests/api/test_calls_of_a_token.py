"""One token of a session is few calls through few files: what a reader has to follow."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import graphml
from graphml import SamplingParams, Token
from tests import tiny_model

OWN = str(Path(graphml.__file__).parent)


def calls_of(tokens: Iterator[Token]) -> list[str]:
    """The files of the calls within graphml that the next token is."""
    files: list[str] = []

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OWN):
            files.append(frame.f_code.co_filename)

    sys.setprofile(seen)
    try:
        next(tokens)
    finally:
        sys.setprofile(None)
    return files


def test_one_token_is_few_calls(tmp_path: Path) -> None:
    with graphml.load(tiny_model.write(tmp_path / "tiny.gguf"), "cpu", threads=1) as model:
        session = model.session(64)
        tokens = session.generate([5, 6, 7], SamplingParams(), 30)
        for _ in range(5):
            next(tokens)
        found = [calls_of(tokens) for _ in range(20)]
    assert statistics.median(map(len, found)) <= 68
    assert statistics.median(len(set(files)) for files in found) <= 18
