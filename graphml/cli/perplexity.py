"""`graphml perplexity`: how well a model predicts a text; the method is llama-perplexity's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from graphml.api.perplexity import LEAST, chunk_of
from graphml.api.perplexity import perplexity as estimates
from graphml.cli.options import options
from graphml.cli.options.checks import text_of
from graphml.cli.options.opening import find, load, model_and_word
from graphml.cli.options.prompts import STDIN
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, write_json
from graphml.errors import TokenizerError, UsageError


@grouped
def perplexity(
    opening: options.Running,
    model: options.Model = None,
    word: Annotated[
        str | None, typer.Argument(metavar="FILE", help="The text, in place of --file.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Text file in UTF-8; without it, or as -, stdin is the text."
        ),
    ] = None,
    n_ctx: Annotated[
        int | None,
        typer.Option(
            "-c", "--ctx-size", "--ctx", min=LEAST, help="Tokens per chunk.",
            show_default="512, or half of a shorter text",
        ),
    ] = None,
    chunks: Annotated[int, typer.Option("--chunks", min=-1, help="Maximum number of chunks; -1: all.")] = -1,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Compute the perplexity of a text by chunks, whose second half is scored, as llama-perplexity."""
    if chunks == 0:
        raise UsageError("--chunks: wanted at least 1, or -1 for all; got 0")
    model, word = model_and_word(model, word, opening)
    if word is not None and file is not None:
        raise UsageError(f"--file: wanted one text; got {word!r:.80} and {str(file)!r:.80}")
    file = file if word is None else Path(word)
    text = _read(file)
    with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        if opened.tokenizer is None:
            raise TokenizerError(f"{opened.path}: wanted a model with a vocabulary, to encode the text")
        ids = opened.encode(text)
        begins = opened.tokenizer.bos if ids[:1] == [opened.tokenizer.bos] else None
        ctx = chunk_of(len(ids), n_ctx, opened.n_ctx)
        limit = None if chunks < 0 else chunks
        estimate = None
        bars.report("perplexity", 0, 0)
        for estimate in estimates(opened.session(ctx), ids, ctx, limit, begins):
            bars.report("perplexity", estimate.chunks, estimate.n_chunks)
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
        half = ", half of the text" if n_ctx is None and ctx == len(ids) // 2 else ""
        said = f"{estimate.chunks} chunks of {ctx}{half}: {estimate.value:.4f} +/- {estimate.error:.5f}"
        print(said, file=sys.stderr)
        print(f"{estimate.value:.4f}")


MOST_OF_TEXT = 1 << 30


def _read(file: Path | None) -> str:
    if file is None or str(file) == STDIN:
        text = "" if sys.stdin.isatty() else sys.stdin.read()
        if not text:
            raise UsageError("--file: wanted a text file, or a text on stdin")
        return text
    return text_of(file, MOST_OF_TEXT, "--file ")
