"""`graphml run`: answer one prompt, or continue a text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

import graphml
from graphml.cli import options
from graphml.cli.console import Bars, remark, write, write_json
from graphml.cli.opening import find, load, sampling, seed_of
from graphml.cli.option_groups import grouped
from graphml.cli.speed import speed
from graphml.errors import UsageError


@grouped
def run(
    opening: options.Talking,
    drawing: options.Sampling,
    model: options.Model = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt", "-p", help="What to answer; without it, what comes on stdin.", show_default=False
        ),
    ] = None,
    max_tokens: options.MaxTokens = 256,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it is, without the model's chat template.")
    ] = False,
    system: options.System = "",
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Print the text that the model is given, before its answer.")
    ] = False,
    json: options.Json = False,
    ctx: options.Context = None,
) -> None:
    """Answer a prompt with the model's chat template; models without one, and --raw, continue the text."""
    params = sampling(drawing)
    if raw and opening.template is not None:
        raise UsageError("--raw, --template: wanted one of them; got both")
    text = _prompt(prompt)
    limit = None if max_tokens < 0 else max_tokens
    with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        session, given, pieces = _begin(opened, text, system, raw, params, limit, ctx, drawing.seed)
        if show_prompt and not json:
            write(given)
        answer = _shown(pieces, bars, silent=json)
        stats = session.stats
        if json:
            ids = session.tokens
            first = len(ids) - stats.n_gen
            write_json(
                {
                    "model": str(opened.path),
                    "arch": opened.arch,
                    "backend": opening.backend,
                    "prompt": given,
                    "text": answer,
                    "prompt_ids": session.source or ids[:first],
                    "ids": ids[first:],
                    "stop_reason": session.stop_reason,
                    "seed": session.seed,
                    "stats": dict(stats),
                }
            )
        elif session.stop_reason == "context":
            print(f"graphml: the context of {session.n_ctx} tokens is full", file=sys.stderr)
        remark(speed(stats))


def _prompt(prompt: str | None) -> str:
    if prompt is not None:
        return prompt
    if sys.stdin.isatty():
        raise UsageError("prompt: wanted -p TEXT, or a text on stdin")
    return sys.stdin.read()


def _begin(
    model: graphml.Model,
    text: str,
    system: str,
    raw: bool,
    params: graphml.SamplingParams,
    limit: int | None,
    ctx: int | None,
    seed: int,
) -> tuple[graphml.Session, str, Iterator[str]]:
    """The session, the text that the model is given, and the pieces of its answer."""
    if raw or not model.has_template:
        if system:
            raise UsageError("--system: wanted a model with a chat template and no --raw")
        session = model.session(ctx, seed_of(seed))
        ids = model.encode(text, parse_special=True)
        return session, text, (token.piece for token in session.generate(ids, params, limit))
    chat = model.chat(system, limit, n_ctx=ctx, seed=seed_of(seed))
    chat.add_user(text)
    return chat.session, chat.render_turn(), chat.stream(params)


def _shown(pieces: Iterator[str], bars: Bars, silent: bool) -> str:
    """Write the pieces as they come, and a line's end after them; return them all."""
    answer: list[str] = []
    for piece in pieces:
        answer.append(piece)
        bars.close()
        if not silent:
            write(piece)
    text = "".join(answer)
    if not silent and not text.endswith("\n"):
        write("\n")
    return text
