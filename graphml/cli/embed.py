"""`graphml embed`: texts to rows of numbers, by an embedding model or the hidden rows of any other."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from graphml.api.text_rows import chosen_pooling, normalized
from graphml.cli.options import options
from graphml.cli.options.opening import find, load
from graphml.cli.options.standard_input import text_beside
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, write, write_json
from graphml.errors import UsageError

Texts = Annotated[
    list[str] | None,
    typer.Option(
        "--text",
        "-p",
        help="A text; may be given again. Each line that is piped is one too, before these.",
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
            help="Pooling: mean, cls (first token), last, rank; by default as the model says, of a decoder "
            "that says nothing last.",
            show_default=False,
        ),
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="Rerank: score each text against this query, with a reranking model.")
    ] = None,
    norm: Annotated[
        int | None,
        typer.Option(
            "--embd-normalize", min=-1, metavar="N", show_default="2",
            help="Norm that embeddings are divided by: 2 Euclidean, 1 taxicab, N the N-norm, 0 the largest "
            "value, to fit int16; -1: none.",
        ),
    ] = None,
    prompt_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=False,
            help="Prompt of a folder of sentence-transformers before each text; by default its default one.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Compute embeddings of texts, of length 1, or scores of a reranking model; a line of numbers each."""
    if query is not None and pooling not in (None, "rank"):
        raise UsageError(f"--query: wanted no --pooling but rank; got {pooling!r:.80}")
    if query is not None and prompt_name is not None:
        raise UsageError(f"--query: wanted no --prompt-name beside it; got {prompt_name!r:.80}")
    _check_norm("rank" if query is not None else pooling, norm)
    texts = texts_of([*(words or ()), *(text or ())])
    with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        chosen = "rank" if query is not None else chosen_pooling(opened.executor, pooling)
        _check_norm(chosen, norm)
        rows = opened.embed(texts, chosen, False, prompt_name) if query is None else opened.rank(query, texts)
        kind = -1 if chosen == "rank" else 2 if norm is None else norm
        rows = normalized(rows, kind)
        bars.close()
        if json:
            write_json(
                {
                    "model": str(opened.path), "arch": opened.arch, "pooling": chosen,
                    "embd_normalize": kind, "embeddings": [[float(x) for x in row] for row in rows],
                }
            )  # fmt: skip
            return
        for row in rows:
            write(" ".join(f"{x:.7g}" for x in row) + "\n")


def _check_norm(pooling: str | None, norm: int | None) -> None:
    if pooling == "rank" and norm is not None:
        raise UsageError(
            f"--embd-normalize: wanted none beside --query or --pooling rank, which score texts; got {norm}"
        )


def texts_of(texts: list[str] | None) -> list[str]:
    """The lines of stdin and behind them the texts by option; UsageError where there are none."""
    if not texts and sys.stdin.isatty():
        raise UsageError("texts: wanted -p TEXT, or a text on each line of stdin")
    piped = text_beside("the texts") if texts else sys.stdin.read()
    every = [*(line for line in piped.splitlines() if line.strip()), *(texts or ())]
    if not every:
        raise UsageError("texts: wanted -p TEXT, or a text on each line of stdin; got nothing")
    return every
