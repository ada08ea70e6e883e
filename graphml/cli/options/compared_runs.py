"""What `graphml compare` and `graphml bisect` share: options, the two sides, the tokens that they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import typer

from graphml.api.load_model import load_model
from graphml.api.model import Model
from graphml.cli.options import options
from graphml.cli.options.checks import check_backends, check_places
from graphml.cli.options.opening import find
from graphml.cli.options.typer_options import beginning_with
from graphml.cli.terminal.console import Bars
from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.passes.placement_rules import with_named

SMALLEST_BATCH, MOST_OF_PROMPT = 32, 4096
TEXT = "Once upon a time there was a little girl who liked to look at the stars. Every night she"
N_TOKENS = 8  # of that text

JUDGE = "reference"
Backends = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="A,B",
        help=f"A is judged, B is the judge ({JUDGE} if A is alone); may be one backend with other fusions. "
        "May be given twice.",
    ),
]
FuseA = Annotated[
    str, typer.Option("--fuse-a", metavar="SWITCHES", help="Fusions of A, see --fuse.", show_default=False)
]
FuseB = Annotated[str, typer.Option("--fuse-b", metavar="SWITCHES", help="Fusions of B, see --fuse.")]
Prompt = Annotated[
    str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="The prompt.", show_default=f"{TEXT} ...")
]
Tokens = Annotated[
    int | None,
    typer.Option(
        "--tokens", min=1, show_default=f"those of --prompt, else {N_TOKENS}",
        help="Number of prompt tokens; the last is a decode step, the others one batch. The prompt begins "
        "anew where it ends.",
    ),
]  # fmt: skip
FORMATS = ("md", "json")
Format = Annotated[str, typer.Option("--format", help="md or json.", autocompletion=beginning_with(FORMATS))]


@dataclass(frozen=True)
class ComparedOptions:
    """The options of both, besides those of opening the model."""

    backend: Backends = f"cpu,{JUDGE}"
    fuse_a: FuseA = ""
    fuse_b: FuseB = ""
    prompt: Prompt = None
    tokens: Tokens = None
    format: Format = "md"

    @property
    def batch(self) -> int:
        """What a step has room for: all tokens, of which a text has no more than bytes and a few markers."""
        n_prompt = 0 if self.prompt is None else min(len(self.prompt.encode()) + 8, MOST_OF_PROMPT)
        return max(self.tokens or n_prompt, SMALLEST_BATCH)

    @property
    def backends(self) -> tuple[str, str]:
        """A, which is judged, and B, which judges; UsageError for names that are no two backends."""
        names = [name.strip() for name in self.backend.split(",")]
        if len(names) > 2:
            raise UsageError(f"--backend: wanted A,B, or A for A,{JUDGE}; got {self.backend!r}")
        check_backends("--backend", self.backend)
        return names[0], names[1] if len(names) > 1 else JUDGE


@dataclass(frozen=True)
class Sides:
    """The two models, opened; b is a where both run on one backend; None is not run. ids: what they run."""

    a: Model | None
    b: Model | None
    ids: list[int]
    options_a: CompileOptions
    options_b: CompileOptions


@contextmanager
def opened(
    model: str | None, opening: options.Opening, run_options: ComparedOptions, a: str | None, b: str | None
) -> Iterator[Sides]:
    """Open the model once per backend; a or b None: that side is not run.

    A is spread over its backend and those that the rules of placement name; B is on one backend.
    """
    options_a, options_b = (
        CompileOptions(run_options.fuse_a, place=opening.place),
        CompileOptions(run_options.fuse_b),
    )
    if opening.place:
        check_places(opening.place)
    for side_options in (options_a, options_b):
        side_options.fusions()  # a wrong name is told before anything is opened
    with Bars() as bars, ExitStack() as held:
        n_batch = run_options.batch
        spread = (
            None if a is None else replace(opening, backend=with_named(a, opening.place), n_batch=n_batch)
        )
        alone = None if b is None else replace(opening, backend=b, place="", n_batch=n_batch)
        path = find(model, spread or alone or opening, bars)

        def load(side: options.Opening | None) -> Model | None:
            return None if side is None else held.enter_context(load_model(path, side, bars.report))

        first = load(spread)
        other = first if alone == spread else load(alone)
        either = first if first is not None else other
        assert either is not None, "no side is run"
        yield Sides(
            first, other, ids_of(either, run_options.prompt, run_options.tokens), options_a, options_b
        )


def ids_of(model: Model, prompt: str | None, tokens: int | None) -> list[int]:
    """The prompt's tokens, or so many, which begin anew where they end; random ones without a vocabulary."""
    if model.tokenizer is None:
        generator = np.random.default_rng(0)
        return [int(token) for token in generator.integers(0, model.n_vocab, tokens or N_TOKENS)]
    ids = model.encode(TEXT if prompt is None else prompt)
    if not ids:
        raise UsageError("--prompt: wanted a text of at least one token; got none")
    count = tokens or (N_TOKENS if prompt is None else len(ids))
    if tokens is None and count > MOST_OF_PROMPT:
        raise UsageError(f"--prompt: wanted at most {MOST_OF_PROMPT} tokens, or --tokens; got {count}")
    return [ids[i % len(ids)] for i in range(count)]


def check_format(format: str) -> None:
    """A UsageError for another format."""
    if format not in FORMATS:
        raise UsageError(f"--format: wanted one of {', '.join(FORMATS)}; got {format!r}")
