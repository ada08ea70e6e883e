"""`graphml perplexity`: how well a model predicts a text; the method is llama-perplexity's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from graphml.api.perplexity import perplexity as estimates
from graphml.cli.options import options
from graphml.cli.options.opening import find, load
from graphml.cli.options.prompts import STDIN
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, write_json
from graphml.errors import TokenizerError, UsageError


@grouped
def perplexity(
    opening: options.Running,
    model: options.Model = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Text file in UTF-8; without it, or as -, stdin is the text."
        ),
    ] = None,
    ctx: Annotated[int, typer.Option("-c", "--ctx-size", "--ctx", min=4, help="Tokens per chunk.")] = 512,
    chunks: Annotated[int, typer.Option("--chunks", min=-1, help="Maximum number of chunks; -1: all.")] = -1,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Compute the perplexity of a text by chunks, whose second half is scored, as llama-perplexity."""
    if chunks == 0:
        raise UsageError("--chunks: wanted at least 1, or -1 for all; got 0")
    text = _read(file)
    with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        if opened.tokenizer is None:
            raise TokenizerError(f"{opened.path}: wanted a model with a vocabulary, to encode the text")
        ids = opened.encode(text)
        begins = opened.tokenizer.bos if ids[:1] == [opened.tokenizer.bos] else None
        limit = None if chunks < 0 else chunks
        total = len(ids) // ctx if limit is None else min(limit, len(ids) // ctx)
        estimate = None
        bars.report("perplexity", 0, total)
        for estimate in estimates(opened.session(ctx), ids, ctx, limit, begins):
            bars.report("perplexity", estimate.chunks, total)
        assert estimate is not None
        if json:
            write_json(
                {
                    "model": str(opened.path), "file": str(file or STDIN), "perplexity": estimate.value,
                    "error": estimate.error, "chunks": estimate.chunks, "n_ctx": ctx,
                    "scored": estimate.count,
                }
            )  # fmt: skip
            return
        print(
            f"{estimate.chunks} chunks of {ctx}: {estimate.value:.4f} +/- {estimate.error:.5f}",
            file=sys.stderr,
        )
        print(f"{estimate.value:.4f}")


def _read(file: Path | None) -> str:
    if file is None or str(file) == STDIN:
        text = "" if sys.stdin.isatty() else sys.stdin.read()
        if not text:
            raise UsageError("--file: wanted a text file, or a text on stdin")
        return text
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--file {file}: cannot be read as UTF-8 text: {error}") from error
