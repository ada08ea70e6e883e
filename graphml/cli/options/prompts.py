"""The prompt of a command line: standard input, words behind the model, options, files.

Knows where texts come from, and which word names a model; nothing of what is done with them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from graphml.cli.options.checks import text_of
from graphml.cli.options.options import MODEL_HELP, Opening
from graphml.cli.options.standard_input import text_beside
from graphml.cli.options.typer_options import beginning_with
from graphml.cli.terminal.console import remark
from graphml.errors import UsageError
from graphml.loading import fetch

STDIN = "-"

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL] [PROMPT]",
        help=f"{MODEL_HELP} What names no model is the prompt; - reads it from stdin.",
        show_default=False,
        autocompletion=beginning_with(fetch.MODELS),
    ),
]


@dataclass(frozen=True)
class PromptOptions:
    """The prompt by option; piped text is before it, files are behind it, an empty line between."""

    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt", "-p", show_default=False,
            help="The prompt. Piped text comes before it and an empty line, or is the prompt.",
        ),
    ] = None  # fmt: skip
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--file", "-f", metavar="FILE", show_default=False,
            help="A text file as the prompt, or behind it; - is stdin. May be given again.",
        ),
    ] = None  # fmt: skip


def model_and_prompt(
    words: Sequence[str], options: PromptOptions, opening: Opening
) -> tuple[str | None, str]:
    """The model of a command line, None for the default or an option's, and the prompt.

    The first word is the model if it names one and no option does; the others are the prompt. Text that is
    piped beside it comes first, unless `-` names its place. UsageError for a prompt that is stated twice, or
    for none where stdin is a terminal or empty.
    """
    left, model = list(words), None
    if left and opening.named is None and opening.hf is None and left[0] != STDIN:
        if fetch.names_model(left[0]):
            model = left.pop(0)
        elif " " not in left[0]:
            remark(f"{left[0]!r} names no model: it is the prompt")
    if left and options.prompt is not None:
        raise UsageError(
            f"prompt: wanted one, got {' '.join(left)!r:.80} and --prompt {options.prompt!r:.80}"
        )
    stated = [" ".join(left)] if left else [] if options.prompt is None else [options.prompt]
    parts = [_stdin() if left == [STDIN] else part for part in stated]
    parts += [
        _stdin() if str(path) == STDIN else text_of(path, said="--file: ").removesuffix("\n")
        for path in options.files or ()
    ]
    if not parts:
        parts = [""] if sys.stdin.isatty() else [_stdin()]
        if not parts[0]:
            raise UsageError(
                'prompt: wanted one, as `graphml run "Hello"`, -p TEXT, -f FILE, or a text on stdin; '
                "`graphml chat` converses"
            )
    elif STDIN not in (*left, *map(str, options.files or ())):
        piped = text_beside("the prompt")
        parts = [piped, *filter(None, parts)] if piped else parts
    return model, "\n\n".join(parts)


def _stdin() -> str:
    return sys.stdin.read().removesuffix("\n")
