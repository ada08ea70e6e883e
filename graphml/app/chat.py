"""`graphml chat`: a conversation, line by line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import graphml
from graphml.app import options
from graphml.app.console import Bars, remark, write
from graphml.app.groups import grouped
from graphml.app.opening import find, load, sampling, seed_of
from graphml.errors import GraphmlError

HELP = "/exit ends, /reset begins anew, /history shows what was said; Ctrl-C stops an answer"


@grouped
def chat(
    opening: options.Running,
    drawing: options.Sampling,
    model: options.Model = None,
    system: options.System = "",
    max_tokens: options.MaxTokens = 512,
    ctx: options.Context = None,
    template: options.Template = None,
) -> None:
    """Talk with a model. /exit ends, /reset begins anew, /history shows all; Ctrl-C stops an answer."""
    params = sampling(drawing)
    limit = None if max_tokens < 0 else max_tokens
    with Bars() as bars, load(find(model, opening.hf, bars), opening, bars, template) as opened:
        talk = opened.chat(system, limit, n_ctx=ctx, seed=seed_of(drawing.seed))
        remark(f"{opened.path.name}. {HELP}.")
        for line in _lines():
            if line == "/exit":
                break
            if line == "/reset":
                talk.reset()
            elif line == "/history":
                for message in talk.history:
                    write(f"{message['role']}: {message['content']}\n")
            elif line.startswith("/"):
                print(f"unknown command {line.split()[0]}: {HELP}", file=sys.stderr)
            elif line:
                _answer(talk, line, params, bars)


def _answer(talk: graphml.Chat, line: str, params: graphml.SamplingParams, bars: Bars) -> None:
    """Show the answer to a line; an error is told and the conversation goes on."""
    talk.add_user(line)
    try:
        with _interrupt_cancels(talk.session):
            for piece in talk.stream(params):
                bars.close()
                write(piece)
    except GraphmlError as error:
        print(f"graphml: {error}", file=sys.stderr)
    write("\n")
    if talk.session.stop_reason == "context":
        print(f"graphml: the context of {talk.session.n_ctx} tokens is full: /reset", file=sys.stderr)


@contextmanager
def _interrupt_cancels(session: graphml.Session) -> Iterator[None]:
    """Within, Ctrl-C ends the answer at its next token and raises nothing."""

    def cancel(number: int, frame: Any) -> None:
        session.cancel()

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _lines() -> Iterator[str]:
    """What the user types, until the end of the input; the prompt is shown on a terminal only."""
    interactive = sys.stdin.isatty()
    if interactive and sys.stdout.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401 - gives input() its editing; not on every platform
        while True:
            try:
                yield input("> ").strip()
            except EOFError:
                print()
                return
    while True:
        if interactive:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        yield line.strip()
