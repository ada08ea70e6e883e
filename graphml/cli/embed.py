"""`graphml embed`: texts to rows of numbers, by an embedding model or the hidden rows of any other."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Annotated

import typer

from graphml.api.text_rows import chosen_pooling, normalized
from graphml.cli.embedded_file import check_alone, check_files, embed_to_file
from graphml.cli.options import options
from graphml.cli.options.opening import find, load, model_and_texts
from graphml.cli.options.standard_input import text_beside
from graphml.cli.options.typer_options import beginning_with, grouped
from graphml.cli.terminal.console import Bars, say, write, write_json
from graphml.errors import UsageError
from graphml.ir.op import Floats
from graphml.loading import fetch
from graphml.workshop.embedded_files import EmbedSettings

FORMATS = ("json", "json+", "array", "raw")  # of llama-embedding
MARK = "\ufeff"  # of the order of bytes, before a text
SHOWN = 60  # characters of a text behind its cosines
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
            help="Prompt before each text, such as query or document, of a folder of sentence-transformers "
            "or of the model's family; by default the folder's default one.",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", metavar="TEXT", help="Text before each text.", show_default=False),
    ] = None,
    dimensions: Annotated[
        int | None,
        typer.Option(
            "--dimensions", min=1, metavar="N", show_default="all",
            help="First numbers of each embedding that are kept, for models that are trained for it.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", show_default=False,
                     help="A file of texts, for --output: .txt (a line a text), .jsonl, .csv, .parquet."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT", show_default=False,
                     help="Embeddings of --file: .npy (float32 [n, d]), or its columns and `embedding` as "
                     ".parquet or .jsonl. The same command goes on after a kill."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file of --output.")] = False,
    column: Annotated[
        str | None,
        typer.Option("--column", metavar="NAME", show_default="text", help="Column of --file with texts."),
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts of --file that are too long for a step.")
    ] = False,
    similarity: Annotated[
        bool, typer.Option("--similarity", help="Print the cosine between each two texts instead.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--embd-output-format", metavar="FORMAT", show_default=False,
            help="Print as llama-embedding does: json (OpenAI's object), json+ (with cosines), array, raw.",
            autocompletion=beginning_with(FORMATS),
        ),
    ] = None,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Compute embeddings of texts, of length 1, or scores of a reranking model; a line of numbers each.

    With --file and --output those of a file of texts, which go on after a kill.
    """
    _check_query(query, {"--prompt-name": prompt_name, "--prompt": prompt}, pooling)
    _check_rows("rank" if query is not None else pooling, norm, similarity, dimensions)
    if form not in (None, *FORMATS):
        raise UsageError(f"--embd-output-format: wanted one of {', '.join(FORMATS)}; got {form!r:.80}")
    if form is not None and (json or similarity):
        raise UsageError("--embd-output-format: wanted no --json and no --similarity beside it")
    model, typed = model_and_texts(model, words, opening)
    check_files(file, output, column, truncate, force)
    if file is not None and output is not None:
        others = {"texts": typed or text, "--query": query, "--similarity": similarity,
                  "--embd-output-format": form}  # fmt: skip
        check_alone(others)
        kind = 2 if norm is None else norm
        settings = EmbedSettings(pooling, kind, prompt_name, prompt, dimensions, column, truncate)
        with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
            _check_rows(chosen_pooling(opened.executor, pooling), norm, False, dimensions)
            embed_to_file(opened, file, output, settings, bars, json)
        return
    texts = texts_of([*typed, *(text or ())], model)
    with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        chosen = "rank" if query is not None else chosen_pooling(opened.executor, pooling)
        _check_rows(chosen, norm, similarity, dimensions)
        if query is None:
            rows = opened.embed(texts, chosen, False, prompt_name, prompt=prompt, dimensions=dimensions)
        else:
            rows = opened.rank(query, texts)
        bars.close()
        kind = -1 if chosen == "rank" else 2 if norm is None else norm
        cosines = (unit := normalized(rows)) @ unit.T if similarity or form == "json+" else None
        rows = normalized(rows, kind)
        if json:
            report = {
                "model": str(opened.path), "arch": opened.arch, "pooling": chosen,
                "embd_normalize": kind, "embeddings": rows.tolist(),
            }  # fmt: skip
            write_json(report if cosines is None else {**report, "similarity": cosines.tolist()})
        else:
            _print(texts, rows, cosines, form)


def _print(texts: list[str], rows: Floats, cosines: Floats | None, form: str | None) -> None:
    """Print rows in one of the forms of llama-embedding, else the cosines of texts or a line of each row."""
    if form == "array":
        write_json(rows.tolist())
    elif form in ("json", "json+"):
        data = [{"object": "embedding", "index": i, "embedding": row.tolist()} for i, row in enumerate(rows)]
        more = {} if cosines is None else {"cosineSimilarity": cosines.tolist()}
        write_json({"object": "list", "data": data, **more})
    elif cosines is not None:
        for row, line in zip(cosines, texts, strict=True):
            label = shorten(line, SHOWN)
            if label == "[...]":  # a long text without spaces
                label = f"{line.strip()[: SHOWN - 6]} [...]"
            write(" ".join(f"{x:7.4f}" for x in row) + f"  {label}\n")
    else:
        for row in rows:
            write(" ".join(f"{x:.7g}" for x in row) + "\n")


def _check_query(query: str | None, before: Mapping[str, str | None], pooling: str | None) -> None:
    """A UsageError for what is asked of embeddings beside a query, whose texts are scored."""
    if query is None:
        return
    if pooling not in (None, "rank"):
        raise UsageError(f"--query: wanted no --pooling but rank; got {pooling!r:.80}")
    for flag, value in before.items():
        if value is not None:
            raise UsageError(f"--query: wanted no {flag} beside it; got {value!r:.80}")


def _check_rows(
    pooling: str | None, norm: int | None, similarity: bool, dimensions: int | None = None
) -> None:
    """A UsageError for what scores have not: neither a norm nor cosines nor dimensions."""
    flags = {"--embd-normalize": norm, "--similarity": similarity or None, "--dimensions": dimensions}
    for flag, value in flags.items():
        if pooling == "rank" and value is not None:
            raise UsageError(
                f"{flag}: wanted none beside --query or --pooling rank, which score texts; got {value}"
            )


def lines_of(text: str) -> list[str]:
    """The lines that are not empty. Other ends of lines that Unicode has are letters of them, as in files."""
    return [line for line in text.removeprefix(MARK).split("\n") if line.strip()]


def texts_of(texts: list[str] | None, model: str | None = None) -> list[str]:
    """The lines of stdin and behind them the texts by option; UsageError where there are none.

    model: MODEL, whose word may have been meant as a text.
    """
    if not texts and model is not None and not fetch.names_model(model):
        word = shlex.quote(model[:80])
        say(f"graphml: {model!r:.80} is taken for MODEL; a text that is one word is `-p {word}`")
    if not texts and sys.stdin.isatty():
        raise UsageError("texts: wanted -p TEXT, or a text on each line of stdin")
    piped = text_beside("the texts") if texts else sys.stdin.read()
    every = [*lines_of(piped), *(texts or ())]
    if not every:
        raise UsageError("texts: wanted -p TEXT, or a text on each line of stdin; got nothing")
    return every
