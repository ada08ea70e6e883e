"""`graphml embed`: texts to rows of numbers, by an embedding model or the hidden rows of any other."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from graphml.api.text_rows import chosen_pooling
from graphml.cli.options import options
from graphml.cli.options.opening import find, load
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, write, write_json
from graphml.errors import UsageError

Texts = Annotated[
    list[str] | None,
    typer.Option(
        "--text",
        "-p",
        help="A text; may be given again. Without it, each line of stdin is one.",
        show_default=False,
    ),
]


@grouped
def embed(
    opening: options.Running,
    model: options.Model = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="Texts, as by --text.", show_default=False),
    ] = None,
    text: Texts = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            help="Pooling: mean, cls (first token), last, rank; by default as the model says.",
            show_default=False,
        ),
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="Rerank: score each text against this query, with a reranking model.")
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="L2-normalize embeddings.")] = False,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Compute embeddings of texts, or scores of a reranking model; one line of numbers for each text."""
    texts = texts_of([*(words or ()), *(text or ())])
    if query is not None and (pooling not in (None, "rank") or normalize):
        raise UsageError("--query: wanted neither --pooling nor --normalize, which mean nothing for scores")
    with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        chosen = "rank" if query is not None else chosen_pooling(opened.executor, pooling)
        rows = opened.embed(texts, chosen, normalize) if query is None else opened.rank(query, texts)
        bars.close()
        if json:
            write_json(
                {
                    "model": str(opened.path), "arch": opened.arch, "pooling": chosen,
                    "normalized": normalize, "embeddings": [[float(x) for x in row] for row in rows],
                }
            )  # fmt: skip
            return
        for row in rows:
            write(" ".join(f"{x:.7g}" for x in row) + "\n")


def texts_of(texts: list[str] | None) -> list[str]:
    """The texts by option, or the lines of stdin; UsageError where there are none."""
    if texts:
        return texts
    if sys.stdin.isatty():
        raise UsageError("texts: wanted -p TEXT, or a text on each line of stdin")
    lines = [line for line in sys.stdin.read().splitlines() if line.strip()]
    if not lines:
        raise UsageError("texts: wanted -p TEXT, or a text on each line of stdin; got nothing")
    return lines
