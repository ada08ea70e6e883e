"""`graphml rerank`: texts in the order in which they answer a query, by a reranking model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphml.cli.embed import Texts, lines_of, texts_of
from graphml.cli.options import options
from graphml.cli.options.checks import text_of
from graphml.cli.options.opening import find, load, model_and_texts
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, write, write_json
from graphml.errors import UsageError


@grouped
def rerank(
    opening: options.Running,
    model: options.Model = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUERY] [TEXT]...", help="The query, unless --query has it; texts, as by --text.",
            show_default=False,
        ),
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", "-q", help="What the texts are to answer.", show_default=False)
    ] = None,
    text: Texts = None,
    file: Annotated[
        Path | None,
        typer.Option("--documents", "-f", "--file", metavar="FILE", show_default=False,
                     help="A file of texts, one a line."),
    ] = None,
    top_n: Annotated[
        int, typer.Option("--top-n", "-n", min=1, help="Print the best N only.", show_default="all")
    ] = 1 << 31,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts to the lengths of a late-interaction model.")
    ] = False,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Print texts by how well they answer a query, the best first: score, number of the text from 0, text."""
    model, left = model_and_texts(model, words, opening)
    if query is None and not left:
        raise UsageError('query: wanted one, as `graphml rerank MODEL "QUERY" "TEXT"...` or --query QUERY')
    query = left.pop(0) if query is None else query
    lines = () if file is None else lines_of(text_of(file))
    texts = texts_of([*left, *(text or ()), *lines])
    with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        scores = [float(row[0]) for row in opened.rank(query, texts, truncate=truncate)]
        bars.close()
        order = sorted(range(len(texts)), key=lambda i: -scores[i])[:top_n]
        if json:
            results = [{"index": i, "score": scores[i], "text": texts[i]} for i in order]
            write_json({"model": str(opened.path), "query": query, "results": results})
            return
        for i in order:
            write(f"{scores[i]:.6g}\t{i}\t{texts[i]}\n")
