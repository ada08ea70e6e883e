"""The options that several commands share: their names, help and ranges, once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A GGUF file, a llama2.c checkpoint, a short name (smollm2 is the default), or user/repo:QUANT.",
        show_default=False,
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Download nothing and ask no server.")]
Hub = Annotated[
    str | None,
    typer.Option(
        "-hf",
        "--hf",
        metavar="USER/REPO:QUANT",
        help="A model of the Hugging Face hub instead.",
        show_default=False,
    ),
]
Backend = Annotated[
    str,
    typer.Option(
        help="What computes: cpu, reference or another installed one; several with commas, preferred first."
    ),
]
Place = Annotated[
    str,
    typer.Option(
        "--place",
        metavar="RULES",
        help="Where nodes go: cpu:layers.0-14,reference:softmax; by default to the first backend that can.",
        show_default=False,
    ),
]
GpuLayers = Annotated[
    int | None,
    typer.Option(
        "--gpu-layers",
        "-ngl",
        min=0,
        help="How many of the last layers the first backend takes, the rest the next or the CPU.",
        show_default="all, or as many as fit",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse what the preferred backend cannot run.")]
Threads = Annotated[
    int | None, typer.Option("--threads", "-t", min=1, help="Worker threads; by default the physical cores.")
]
CacheType = Annotated[
    str, typer.Option("--kv", help="How keys and values are kept: f16, f32, bf16, q8_0 or q4_0.")
]
Quant = Annotated[
    str | None,
    typer.Option(
        "--quant",
        help="What weights become in memory: fp32 (exact), q8 or q4; by default as the file has them.",
        show_default=False,
    ),
]
Context = Annotated[
    int | None,
    typer.Option("--ctx", "-c", min=1, help="Tokens of context; by default as the model was trained."),
]
BatchSize = Annotated[int, typer.Option("--batch", "-b", min=1, help="Most tokens of one evaluation.")]
Architecture = Annotated[
    Path | None,
    typer.Option("--arch", metavar="FILE.py", help="A Python file that defines the architecture; it is run."),
]
Fuse = Annotated[
    str,
    typer.Option(
        "--fuse",
        metavar="SWITCHES",
        help="Which fusions are on: none, or names such as -swiglu,+linear; by default all.",
        show_default=False,
    ),
]
PreTokenizer = Annotated[
    str | None, typer.Option("--pre", help="A pre-tokenizer's name, in place of the file's.")
]
Template = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A Jinja chat template in place of the model's own."),
]
System = Annotated[str, typer.Option("--system", help="What the system message says.")]
MaxTokens = Annotated[
    int, typer.Option("--max-tokens", "-n", min=-1, help="Most tokens to generate; -1: until the model ends.")
]
Seed = Annotated[
    int, typer.Option("--seed", "-s", min=-1, help="Seed of the random generator; -1 draws one.")
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
Stop = Annotated[
    list[str] | None, typer.Option("--stop", help="A text that ends the generation; may be given again.")
]


@dataclass(frozen=True)
class Finding:
    """Where a model is looked for, besides MODEL."""

    hf: Hub = None
    offline: Offline = False


@dataclass(frozen=True)
class Compiling(Finding):
    """The same, and what decides what a model's graph becomes."""

    backend: Backend = "cpu"
    threads: Threads = None
    kv: CacheType = "f16"
    arch: Architecture = None
    fuse: Fuse = ""
    place: Place = ""
    gpu_layers: GpuLayers = None
    strict: Strict = False


@dataclass(frozen=True)
class Header(Compiling):
    """The same for steps of some size. For commands that read no more than a file's header."""

    batch: BatchSize = 512


@dataclass(frozen=True)
class Running(Header):
    """The same, and what decides what is in memory. For commands that run a model."""

    quant: Quant = None
    pre: PreTokenizer = None


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn."""

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
