"""Options of `graphml bench` as values: each with its type, default, help, range and flags.

Names are llama-bench's where it has them; what opening a model has too comes from `LoadOptions`. The flags of
the command, their help and the table in docs/benchmarks.md are derived from these fields. Lists of values
have llama-bench's syntax: `1,2`, `1-4`, `512-2048+512`, `1-32*2`. Measures nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphml.bench import test_plan as plan
from graphml.bench.row_formats import FORMATS
from graphml.errors import UsageError
from graphml.ir.cache_types import CACHE_DTYPES, CACHE_NAMES
from graphml.options.option_fields import OneOf, Real, Whole, check, option, options_of, same
from graphml.runtime.programs.load_options import LoadOptions

_RANGE = re.compile(r"(\d+)(?:-(\d+)(?:([+*])(\d+))?)?")
MOST = 4096
LARGEST = 1 << 31


def whole_numbers(option: str, texts: Sequence[str], least: int = 0) -> list[int]:
    """The numbers of all the texts, in order; UsageError that names the option for another spelling."""
    numbers: list[int] = []
    for text in texts:
        for part in text.split(","):
            numbers += _range(option, part.strip(), least)
    if len(numbers) > MOST:
        raise UsageError(f"{option}: wanted at most {MOST} values; got {len(numbers)}")
    return numbers


def _range(option: str, text: str, least: int) -> list[int]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{option}: wanted whole numbers such as 1,2 or a range as first-last, first-last+step or "
            f"first-last*factor; got {text!r}"
        )
    first, last = int(match[1]), int(match[2] or match[1])
    step, multiply = int(match[4] or 1), match[3] == "*"
    if not least <= first <= last < LARGEST:
        raise UsageError(f"{option}: wanted {least} or more, rising; got {text!r}")
    if first < last and (step == 0 or (multiply and (step == 1 or first == 0))):
        raise UsageError(f"{option}: the range {text!r} never ends")
    numbers: list[int] = []
    while first <= last and len(numbers) <= MOST:
        numbers.append(first)
        first = first * step if multiply else first + step
        if step == 0 or (multiply and first == 0):
            break
    return numbers


def words(option: str, texts: Sequence[str]) -> list[str]:
    """The words of all the texts, in order; UsageError that names the option for texts without any."""
    names = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    if texts and not names:
        raise UsageError(f"{option}: wanted at least one name; got {texts[0]!r}")
    return names


def pairs(option: str, texts: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs `pp,tg`, one of each text."""
    pairs = []
    for text in texts:
        numbers = whole_numbers(option, [text], 1)
        if len(numbers) != 2:
            raise UsageError(f"{option}: wanted tokens of the prompt and after it, as 512,128; got {text!r}")
        pairs.append((numbers[0], numbers[1]))
    return pairs


_LOADING = options_of(LoadOptions)
_CACHE_TYPES = OneOf(CACHE_NAMES)


def _numbers(default: tuple[int, ...], summary: str, *flags: str, least: int = 0, **more: Any) -> Any:
    """A field of whole numbers, given as lists and ranges."""
    return option(
        default, summary, *flags, metavar="N", on_command_line=str, repeated=True,
        shown=",".join(map(str, default)),
        parse=lambda texts: tuple(whole_numbers(flags[-1], texts, least)), **more,
    )  # fmt: skip


def _names(
    default: tuple[str, ...], summary: str, *flags: str, metavar: str = "NAME", among: Any = None
) -> Any:
    """A field of names, given with commas; among: the range of each."""

    def parse(texts: list[str]) -> tuple[str, ...]:
        names = words(flags[-1], texts)
        return tuple(names if among is None else (among.read(flags[-1], name) for name in names))

    return option(
        default, summary, *flags, metavar=metavar, on_command_line=str, repeated=True,
        shown=",".join(default), parse=parse,
    )  # fmt: skip


def _listed(summary: str, *flags: str, metavar: str, **more: Any) -> Any:
    """A field of texts, one for each time that it is given."""
    return option((), summary, *flags, metavar=metavar, on_command_line=str, repeated=True, **more)


@dataclass(frozen=True)
class ModelOptions:
    """The models that are measured."""

    model: tuple[str, ...] = _listed("A model's file or short name.", "--model", "-m", metavar="FILE")
    hf: tuple[str, ...] = _listed(
        "A model of the Hugging Face hub.", "--hf", "-hf", metavar="USER/REPO:QUANT"
    )
    shape: tuple[str, ...] = _names(
        (), "A model of random weights made once in the cache folder: tinyllama-1.1b, phi-2, ...", "--shape"
    )
    type: tuple[str, ...] = _names(
        ("Q4_K_M",), "File types of --shape, as llama-quantize names them.", "--type", metavar="TYPE"
    )
    arch: str | os.PathLike[str] | None = same(LoadOptions, "arch")
    offline: bool | None = same(LoadOptions, "offline")


@dataclass(frozen=True)
class LengthOptions:
    """The lengths that are measured: prompts, generated tokens, what is in the context before, sequences."""

    n_prompt: tuple[int, ...] = _numbers((512,), "Tokens of the prompt.", "--n-prompt", "-p")
    n_gen: tuple[int, ...] = _numbers((128,), "Tokens to generate.", "--n-gen", "-n")
    pg: tuple[tuple[int, int], ...] = _listed(
        "A prompt and then tokens, timed together.", "--n-prompt-gen", "-pg", metavar="PP,TG",
        parse=lambda texts: tuple(pairs("-pg", texts)),
    )  # fmt: skip
    n_depth: tuple[int, ...] = _numbers((0,), "Tokens in the context before, not timed.", "--n-depth", "-d")
    parallel: tuple[int, ...] = _numbers(
        (1,), "Sequences that are evaluated together.", "--n-parallel", "-npl", least=1
    )

    @property
    def tests(self) -> list[plan.Test]:
        """The tests of these lengths."""
        return plan.tests(self.n_prompt, self.n_gen, self.pg, self.n_depth, self.parallel)


@dataclass(frozen=True)
class SettingOptions:
    """The settings that each test is run with, in all combinations."""

    batch_size: tuple[int, ...] = _numbers(
        (plan.SideParameters.n_batch,), "Logical batch size in tokens.", "--batch-size", "-b", least=1
    )
    ubatch_size: tuple[int, ...] = _numbers(
        (plan.SideParameters.n_ubatch,), "Physical batch size in tokens.", "--ubatch-size", "-ub", least=1
    )
    threads: tuple[int, ...] = _numbers(
        (), _LOADING["threads"].text, *_LOADING["threads"].flags, least=1,
        variable=_LOADING["threads"].variable,
    )  # fmt: skip
    cache_type_k: tuple[str, ...] = _names(
        (), f"Type of the keys: {OneOf(CACHE_DTYPES)}; by default that of the values, else f16.",
        "--cache-type-k", "-ctk", metavar="TYPE", among=_CACHE_TYPES,
    )  # fmt: skip
    cache_type_v: tuple[str, ...] = _names(
        (), "Type of the values; by default that of the keys.", "--cache-type-v", "-ctv",
        metavar="TYPE", among=_CACHE_TYPES,
    )  # fmt: skip
    quant: tuple[str, ...] = _names(
        (), _LOADING["quant"].text, "--quant", metavar="MODE", among=_LOADING["quant"].range
    )
    place: tuple[str, ...] = _listed(
        "Where nodes go: cpu:layers.0-14,cpu:softmax; by default to the backend.", "--place", metavar="RULES"
    )
    gpu_layers: tuple[int, ...] = _numbers(
        (),
        "How many of the last layers the backend takes, the rest the CPU; by default all, or as many as fit.",
        *_LOADING["gpu_layers"].flags,
    )  # fmt: skip

    @property
    def cache_types(self) -> list[tuple[str, str]]:
        """Pairs of types; where one option is left out, the other's."""
        keys, values = self.cache_type_k, self.cache_type_v
        if keys and values:
            return [(key, value) for key in keys for value in values]
        return [(kind, kind) for kind in keys or values or (plan.SideParameters.type_k,)]

    def combined(self, models: list[str], threads: list[int]) -> list[plan.SideParameters]:
        """All combinations, of these models and numbers of threads."""
        quants = self.quant or (plan.SideParameters.quant,)
        return plan.settings(
            models, threads, self.batch_size, self.ubatch_size, self.cache_types, quants,
            self.place or (plan.SideParameters.place,), self.gpu_layers or (plan.SideParameters.gpu_layers,),
        )  # fmt: skip


@dataclass(frozen=True)
class RunOptions:
    """The sides and the rounds."""

    backend: tuple[str, ...] = _names(
        (LoadOptions.backend,), "Backends to measure in turns, with commas.", "--backend", metavar="NAMES"
    )
    peer: tuple[str, ...] = _names(
        (), f"Another engine to measure in turns: {plan.LLAMA_CPP} or {plan.OPENVINO}.", "--peer"
    )
    peer_python: str | None = option(
        None, "The Python that has the peer, if it is not this one.", "--peer-python", metavar="PYTHON"
    )
    repetitions: int = option(5, "Rounds of each test.", "--repetitions", "-r", range=Whole(1))
    no_warmup: bool = option(False, "Time the first run too.", "--no-warmup")
    no_check: bool = option(
        False, "Of several sides: do not compare their logits with the reference's.", "--no-check"
    )
    delay: float = option(0.0, "Seconds to wait before each test.", "--delay", range=Real(0, 3600))
    ray: str | None = option(
        None, "A node of each kind of a Ray cluster measures: its head node's address, or auto.", "--ray",
        metavar="HOST:PORT",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self, by_flag=True)


@dataclass(frozen=True)
class MeasuredServers:
    """Servers that are measured in place of a model here, and what their clients send."""

    server: tuple[str, ...] = _listed(
        "A server that speaks OpenAI's protocol, measured in turns with the others.", "--server",
        metavar="URL",
    )  # fmt: skip
    clients: tuple[int, ...] = _numbers((1, 8, 32), "Clients at a time, of --server.", "--clients", least=1)
    requests: int = option(4, "Chats of each client, one after another.", "--requests", range=Whole(1))
    shared: int = option(0, "Words that all prompts begin with.", "--shared-prefix", range=Whole(0))
    long_prompt: int = option(
        0, "Words of one more chat, for one token, that comes while all clients get theirs.",
        "--long-prompt", range=Whole(0),
    )  # fmt: skip
    idle: int = option(0, "Connections that stay open and ask nothing.", "--idle", range=Whole(0))
    api_key: str | None = option(None, "API key of the servers, or @FILE.", "--api-key", metavar="KEY")

    def __post_init__(self) -> None:
        check(self, by_flag=True)


@dataclass(frozen=True)
class OutputOptions:
    """What becomes of the rows."""

    output: str = option("md", "What stdout gets: {words}.", "--output", "-o", range=OneOf(tuple(FORMATS)))
    output_err: str | None = option(
        None, "What stderr gets too: {words}.", "--output-err", "-oe", range=OneOf(tuple(FORMATS))
    )

    def __post_init__(self) -> None:
        if "." in self.output:
            form = self.output.rpartition(".")[2]
            shell = f": -o {form} > {self.output}" if form in FORMATS else ""
            raise UsageError(f"--output: wanted a form of stdout, {', '.join(FORMATS)}, and no file{shell}")
        check(self, by_flag=True)
