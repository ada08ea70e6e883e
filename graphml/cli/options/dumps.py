"""What `graph`, `diff` and `explain` share: from a model or a dump to a document, and out again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphml.cli.options.opening import header
from graphml.cli.options.options import Opening
from graphml.cli.terminal.console import Bars, write_file
from graphml.inspect.dumps.document import Document
from graphml.inspect.dumps.records import is_dump, read_dump
from graphml.inspect.dumps.without_weights import describe_model

Tokens = Annotated[
    int, typer.Option("--tokens", min=1, help="Number of tokens in the step: 1 for decode, 512 for prefill.")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Output file, in place of stdout.")
]


def document_of(model: str | None, tokens: int, opening: Opening) -> Document:
    """The document of a model's passes, from the header of its file, or of a dump in a file."""
    dump = model if model is not None else opening.named
    if dump is not None and opening.hf is None and is_dump(Path(dump)):
        return read_dump(Path(dump))
    with Bars() as bars, header(model, opening, tokens, bars) as (_, executor):
        return describe_model(executor, tokens)


def write_out(text: str, output: Path | None) -> None:
    """Write a text to stdout or to a file; a file that cannot be written is a `UsageError`."""
    if output is None:
        print(text, end="")
    else:
        write_file(output, text, "--output")
