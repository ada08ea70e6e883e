"""`graphml tokenize`: the tokens of a text, by the tokenizer of a model, whose weights are not read."""

from __future__ import annotations

from typing import Annotated

import typer

from graphml.api.model_tokenizer import no_tokenizer, tokenizer_of
from graphml.cli.options import options
from graphml.cli.options.opening import open_header
from graphml.cli.options.prompts import PromptOptions, Words, model_and_prompt
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, write, write_json
from graphml.errors import TokenizerError, UsageError
from graphml.text.tokenizer import Tokenizer


@grouped
def tokenize(
    prompts: PromptOptions,
    opening: options.Tokenizing,
    words: Words = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print the ids alone, as a JSON list.")] = False,
    decode: Annotated[
        bool, typer.Option("--decode", help="The text is ids, with spaces or commas; print what they spell.")
    ] = False,
    special: Annotated[
        bool,
        typer.Option(
            "--special/--no-special", help="Add BOS and EOS as the model wants, and read control tokens."
        ),
    ] = True,
    json: options.Json = False,
) -> None:
    """Print the tokens of a text: a line each with id and text. Weights are not downloaded."""
    if ids + decode + json > 1:
        raise UsageError("--ids, --decode, --json: wanted one of them; got several")
    model, text = model_and_prompt(words or (), prompts, opening)
    with Bars() as bars, open_header(model, opening, bars) as file:
        tokenizer = tokenizer_of(file.metadata, opening.pre)
        if tokenizer is None:
            raise TokenizerError(f"{file.path}: {no_tokenizer(file.metadata)}")
    if decode:
        write(tokenizer.decode(_ids_of(text, tokenizer.n_vocab)) + "\n")
        return
    tokens = tokenizer.encode(text, add_special=special, parse_special=special)
    if ids:
        write(f"{tokens}\n")
    elif json:
        write_json({"model": str(file.path), "n_tokens": len(tokens), "tokens": _entries(tokenizer, tokens)})
    else:
        width = len(str(tokenizer.n_vocab))
        for token in tokens:
            write(f"{token:{width}}  {tokenizer.quoted(token)}\n")


def _entries(tokenizer: Tokenizer, tokens: list[int]) -> list[dict[str, object]]:
    return [
        {"id": token, "text": tokenizer.piece(token), "bytes": list(tokenizer.piece_bytes(token))}
        for token in tokens
    ]


def _ids_of(text: str, n_vocab: int) -> list[int]:
    words = text.replace(",", " ").strip(" []\n").split()
    for word in words:
        is_number = word.isascii() and word.isdecimal() and len(word) <= len(str(n_vocab))
        if not is_number or int(word) >= n_vocab:
            raise UsageError(f"--decode: wanted ids from 0 to {n_vocab - 1}; got {word!r:.40}")
    return [int(word) for word in words]
