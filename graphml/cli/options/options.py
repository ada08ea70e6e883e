"""The options that several commands share: their names, help and ranges, once.

Those of opening a model are the fields of `LoadOptions`; those of sampling, of `SamplingParams`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from graphml.cli.options.typer_options import Shown, beginning_with, typer_option
from graphml.loading.download.short_names import MODELS
from graphml.options.option_fields import option, options_of, same
from graphml.runtime.programs.load_options import LoadOptions

MODEL_HELP = (
    "A GGUF file, a folder of transformers, a llama2.c checkpoint, a short name (smollm2 is the default), "
    "user/repo:QUANT, or the address of a GGUF file."
)
Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help=MODEL_HELP,
        autocompletion=beginning_with(MODELS),
        show_default=False,
    ),
]


def stated(name: str) -> Any:
    """The option of a field of the load options, for a command that takes it alone."""
    (default,) = (field.default for field in fields(LoadOptions) if field.name == name)
    return typer_option(options_of(LoadOptions)[name], default)


Threads = Annotated[int | None, stated("threads")]
Quant = Annotated[str | None, stated("quant")]
Architecture = Annotated[Path | None, stated("arch")]
TrustArchitecture = Annotated[bool, stated("trust_arch")]
Context = Annotated[
    int | None,
    typer.Option(
        "-c", "--ctx-size", "--ctx", min=1, help="Context length in tokens; by default that of the model."
    ),
]
System = Annotated[str, typer.Option("--system", "-sys", help="System message.")]
MaxTokens = Annotated[
    int,
    typer.Option(
        "--max-tokens",
        "--n-predict",
        "--predict",
        "-n",
        min=-1,
        help="Maximum number of tokens to generate; -1: no limit but the context.",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", "-s", min=-1, help="Seed of the random generator; -1: a random one.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

GrammarFile = Annotated[
    Path | None,
    typer.Option(
        "--grammar-file",
        metavar="FILE",
        help="A file with a GBNF grammar that the text follows, as --grammar FILE.",
    ),
]
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--json-schema-file",
        "-jf",
        metavar="FILE",
        help="A file with the JSON schema of the text, as --json-schema FILE.",
    ),
]
Variables = Annotated[
    str | None,
    typer.Option(
        "--chat-template-kwargs",
        metavar="JSON",
        help='Further variables of the chat template, as {"enable_thinking": false}.',
    ),
]
Template = Annotated[
    str | None,
    typer.Option(
        "--chat-template",
        metavar="NAME|JINJA",
        help="A Jinja chat template, or the name of another template in the model file.",
    ),
]
ReasoningFormat = Annotated[
    str,
    typer.Option(
        "--reasoning-format",
        metavar="FORMAT",
        help="none: reasoning stays in the text; deepseek, auto: it is separated from the answer.",
    ),
]


@dataclass(frozen=True)
class ModelSource:
    """Where a model is looked for, besides MODEL."""

    named: str | None = option(
        None, "The model, in place of MODEL by position.", "--model", "-m", metavar="MODEL"
    )
    hf: str | None = option(
        None, "A model from the Hugging Face hub.", "--hf", "-hf", metavar="USER/REPO:QUANT"
    )
    offline: bool | None = same(LoadOptions, "offline")


@dataclass(frozen=True)
class Opening(LoadOptions):
    """The load options, and where a model is looked for besides MODEL."""

    named: str | None = same(ModelSource, "named")
    hf: str | None = same(ModelSource, "hf")


OVERRIDES = ("override_kv", *(name for name, option in options_of(LoadOptions).items() if option.key))
"""Those that change the file's metadata."""
_ARCHITECTURE = ("arch", "trust_arch")
_COMPILED = (
    "hf", "offline", "backend", "threads", "kv", "swa_full", *_ARCHITECTURE, "fuse", "place", "gpu_layers",
    "strict", "lora", "control_vectors", "control_layers", *OVERRIDES,
)  # fmt: skip
_HEADER = ("named", *_COMPILED, "n_batch")
_RUNNING = (*_HEADER, "quant", "pre", "pages", "numa", "pin", "tuned", "deterministic")
_GENERATING = (*_RUNNING, "template", "draft_model")

Compiling = Annotated[Opening, Shown("named", *_COMPILED)]
"""What decides what a model's graph becomes."""
ComparedGraphs = Annotated[Opening, Shown(*_COMPILED)]
"""The same, for a command that takes two models."""
Header = Annotated[Opening, Shown(*_HEADER)]
"""The same for steps of some size. For commands that read no more than a file's header."""
Running = Annotated[Opening, Shown(*_RUNNING)]
"""The same, and what decides what is in memory. For commands that run a model."""
Talking = Annotated[Opening, Shown(*_GENERATING)]
"""The same, and the chat template and the draft model. For commands that answer messages."""
Tokenizing = Annotated[Opening, Shown("named", "hf", "offline", "pre")]
"""For commands that read no more than a file's vocabulary."""
Trained = Annotated[Opening, Shown("named", "hf", "offline", *_ARCHITECTURE, "pre", "template", *OVERRIDES)]
"""For the command that trains adapters."""
_CONVERTED = ("named", "hf", "offline", "backend", "threads", "kv", "quant", *_ARCHITECTURE, "lora", "pre")
Converted = Annotated[Opening, Shown(*_CONVERTED, *OVERRIDES)]
"""For the command that writes a model's file."""
Compared = Annotated[
    Opening, Shown("named", "hf", "offline", "kv", "threads", *_ARCHITECTURE, "place", *OVERRIDES)
]
"""What both sides of a comparison have in common; and where the nodes of the judged one go."""
