"""An answer as it is denoised, drawn on stderr after each step and gone when it is done.

Knows terminals, sessions, ids and their text; nothing of how an answer is denoised.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Iterator
from typing import Annotated

import typer

import graphml
from graphml.api.denoising import shown_answer
from graphml.cli.terminal.console import CONTROL
from graphml.errors import UsageError
from graphml.sampling.denoiser import Denoiser
from graphml.text.tokenizer import Tokenizer

Visual = Annotated[
    bool,
    typer.Option("--diffusion-visual", help="Diffusion models: show the answer on stderr after each step."),
]


class DenoisingView:
    """Draws an answer over what it has drawn before; off a terminal one step below the other."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._drawn = tokenizer, 0

    def show(self, answer: Denoiser) -> None:
        """Draw an answer."""
        text = shown_answer(self._tokenizer, answer)
        lines = [f"step {answer.n_steps} of {answer.most_steps}", *text.split("\n")]
        if sys.stderr.isatty():
            columns, rows = shutil.get_terminal_size()
            lines = [CONTROL.sub("", line) for line in lines]
            wide = any(unicodedata.east_asian_width(letter) in "WF" for line in lines for letter in line)
            width = max(1, (columns - 1) // (1 + wide))
            lines = [line[at : at + width] for line in lines for at in range(0, len(line) or 1, width)]
            lines = lines[: max(1, rows - 2)]
            self.erase()
            self._drawn = len(lines)
        print("\n".join(lines), file=sys.stderr, flush=True)

    def erase(self) -> None:
        """Remove what was drawn."""
        if self._drawn:
            print(f"\x1b[{self._drawn}F\x1b[J", end="", file=sys.stderr, flush=True)
            self._drawn = 0


def check_visual(model: graphml.Model) -> Tokenizer:
    """The vocabulary of a diffusion model; UsageError for a model whose answers are not denoised."""
    if not model.executor.denoises or model.tokenizer is None:
        raise UsageError(f"--diffusion-visual: wanted a diffusion model with a vocabulary; got {model.path}")
    return model.tokenizer


def with_view(
    pieces: Iterator[str], session: object, model: graphml.Model | None, wanted: bool
) -> Iterator[str]:
    """The pieces of a session's answer; where the view is wanted, at once and behind it."""
    if not wanted or model is None:
        return pieces
    view = DenoisingView(check_visual(model))
    return _behind_view(pieces, session, view) if isinstance(session, graphml.Session) else pieces


def _behind_view(pieces: Iterator[str], session: graphml.Session, view: DenoisingView) -> Iterator[str]:
    session.on_denoised = view.show
    every: list[str] = []
    try:
        for piece in pieces:
            every.append(piece)
    except BaseException:  # what was settled before it is the answer so far
        view.erase()
        yield from every
        raise
    finally:
        session.on_denoised = None
        view.erase()
    yield from every
