"""The text that a model is measured on: a file or stdin, and its ids.

Knows files and vocabularies; nothing of what is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graphml.api.model import Model
from graphml.cli.options.checks import text_of
from graphml.cli.options.prompts import STDIN
from graphml.errors import TokenizerError, UsageError

MOST_OF_TEXT = 1 << 30


def text_to_measure(file: Path | None) -> str:
    """The file's text, or that of stdin where it is None or `-`."""
    if file is None or str(file) == STDIN:
        text = "" if sys.stdin.isatty() else sys.stdin.read().removeprefix("\ufeff")
        if not text:
            raise UsageError("--file: wanted a text file, or a text on stdin")
        return text
    return text_of(file, MOST_OF_TEXT, "--file ")


@contextmanager
def naming_text(file: Path | None) -> Iterator[None]:
    """Within, errors of the library about a text name its file, or stdin."""
    try:
        yield
    except UsageError as error:
        argument, _, problem = str(error).partition(": ")
        if argument != "text":
            raise
        name = STDIN if file is None else str(file)
        raise UsageError(f"{'stdin' if name == STDIN else f'--file {name}'}: {problem}") from None


def ids_and_beginning(opened: Model, text: str) -> tuple[list[int], int | None]:
    """The text's ids, and the one that each chunk begins with: None where the vocabulary adds none."""
    tokenizer = opened.tokenizer
    if tokenizer is None:
        raise TokenizerError(f"{opened.path}: wanted a model with a vocabulary, to encode the text")
    begins = tokenizer.bos is not None and opened.encode("a")[:1] == [tokenizer.bos]
    return opened.encode(text), tokenizer.bos if begins else None
