"""The options that several commands share: their names, help and ranges, once.

Those of opening a model are the fields of `LoadOptions`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from graphml.cli.typer_options import Shown, typer_option
from graphml.option_fields import option, options_of, same
from graphml.runtime.load_options import LoadOptions

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A GGUF file, a llama2.c checkpoint, a short name (smollm2 is the default), or user/repo:QUANT.",
        show_default=False,
    ),
]


def stated(name: str) -> Any:
    """The option of a field of the load options, for a command that takes it alone."""
    (default,) = (one.default for one in fields(LoadOptions) if one.name == name)
    return typer_option(options_of(LoadOptions)[name], default)


Offline = Annotated[bool | None, stated("offline")]
Threads = Annotated[int | None, stated("threads")]
Quant = Annotated[str | None, stated("quant")]
Architecture = Annotated[Path | None, stated("arch")]
Context = Annotated[
    int | None,
    typer.Option("--ctx", "-c", min=1, help="Tokens of context; by default as the model was trained."),
]
System = Annotated[str, typer.Option("--system", help="What the system message says.")]
MaxTokens = Annotated[
    int, typer.Option("--max-tokens", "-n", min=-1, help="Most tokens to generate; -1: until the model ends.")
]
Seed = Annotated[
    int, typer.Option("--seed", "-s", min=-1, help="Seed of the random generator; -1: a random one.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

Temperature = Annotated[
    float, typer.Option("--temp", min=0.0, help="Temperature; 0 takes the most likely token.")
]
TopK = Annotated[int, typer.Option("--top-k", min=0, help="Keep the k most likely tokens; 0 is off.")]
TopP = Annotated[
    float,
    typer.Option("--top-p", min=0.0, max=1.0, help="Keep the likeliest that reach p together; 1 is off."),
]
MinP = Annotated[
    float,
    typer.Option("--min-p", min=0.0, max=1.0, help="Keep those at least p times as likely as the likeliest."),
]
TypicalP = Annotated[
    float, typer.Option("--typical-p", min=0.0, max=1.0, help="Locally typical sampling; 1 is off.")
]
RepeatPenalty = Annotated[
    float, typer.Option("--repeat-penalty", help="Makes tokens of the window less likely; 1 is off.")
]
PresencePenalty = Annotated[
    float, typer.Option("--presence-penalty", help="Taken off the logits of tokens in the window.")
]
FrequencyPenalty = Annotated[
    float, typer.Option("--frequency-penalty", help="Taken off once per occurrence in the window.")
]
RepeatLastN = Annotated[
    int, typer.Option("--repeat-last-n", min=-1, help="Length of the penalties' window; -1: everything.")
]
DynatempRange = Annotated[
    float, typer.Option("--dynatemp-range", min=0.0, help="The temperature moves by this with the entropy.")
]
DynatempExponent = Annotated[
    float, typer.Option("--dynatemp-exp", min=0.0, help="Exponent of the dynamic temperature.")
]
MinKeep = Annotated[
    int, typer.Option("--min-keep", min=0, help="Fewest tokens that top-p, min-p and typical-p leave.")
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(
        "--logit-bias",
        metavar="ID+X|ID-X",
        help="Added to the logit of a token: 15043+1; 15043-inf forbids it; may be given again.",
    ),
]
StopToken = Annotated[
    list[int] | None,
    typer.Option(
        "--stop-token", metavar="ID", min=0, help="A token that ends the generation; may be given again."
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
Stop = Annotated[
    list[str] | None, typer.Option("--stop", help="A text that ends the generation; may be given again.")
]


@dataclass(frozen=True)
class Source:
    """Where a model is looked for, besides MODEL."""

    hf: str | None = option(
        None, "A model of the Hugging Face hub instead.", "--hf", "-hf", metavar="USER/REPO:QUANT"
    )
    offline: bool | None = same(LoadOptions, "offline")


@dataclass(frozen=True)
class Opening(LoadOptions):
    """The load options, and where a model is looked for besides MODEL."""

    hf: str | None = same(Source, "hf")


OVERRIDES = ("override_kv", *(name for name, one in options_of(LoadOptions).items() if one.key))
"""Those that change the file's metadata."""
_COMPILING = (
    "hf", "offline", "backend", "threads", "kv", "arch", "fuse", "place", "gpu_layers", "strict", *OVERRIDES,
)  # fmt: skip
_HEADER = (*_COMPILING, "n_batch")
_RUNNING = (*_HEADER, "quant", "pre", "pages", "numa", "tuned")

Compiling = Annotated[Opening, Shown(*_COMPILING)]
"""What decides what a model's graph becomes."""
Header = Annotated[Opening, Shown(*_HEADER)]
"""The same for steps of some size. For commands that read no more than a file's header."""
Running = Annotated[Opening, Shown(*_RUNNING)]
"""The same, and what decides what is in memory. For commands that run a model."""
Talking = Annotated[Opening, Shown(*_RUNNING, "template")]
"""The same, and the chat template. For commands that answer messages."""
Compared = Annotated[Opening, Shown("hf", "offline", "kv", "threads", "arch", *OVERRIDES)]
"""What both sides of a comparison have in common."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are sampled."""

    temp: Temperature = 0.0
    top_k: TopK = 0
    top_p: TopP = 1.0
    min_p: MinP = 0.0
    typical_p: TypicalP = 1.0
    repeat_penalty: RepeatPenalty = 1.0
    presence_penalty: PresencePenalty = 0.0
    frequency_penalty: FrequencyPenalty = 0.0
    repeat_last_n: RepeatLastN = 64
    dynatemp_range: DynatempRange = 0.0
    dynatemp_exp: DynatempExponent = 1.0
    stop: Stop = None
    seed: Seed = -1
    min_keep: MinKeep = 0
    logit_bias: LogitBias = None
    stop_token: StopToken = None
