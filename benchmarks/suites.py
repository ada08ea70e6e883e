"""Named benchmark suites: models, tests and goals.

Values only; `suite_run` measures them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TypeVar

from benchmarks.serving import Load
from graphml.bench.test_plan import Test
from graphml.errors import UsageError

AnyCase = TypeVar("AnyCase", "Case", "ServeCase")
DEFAULT_MODEL = ""  # the model that commands use without MODEL, SmolLM2-135M-Instruct in Q4_1
MiB = 1 << 20


@dataclass(frozen=True)
class Goal:
    """What a figure of a row has to reach. figure: "ratio" (to the peer), "t/s", "ms" or "of bandwidth".

    An "ms" is an upper limit. otherwise: an alternative goal if the first is out of reach. threads: the
    number of threads from which on it applies.
    """

    figure: str
    value: float
    otherwise: Goal | None = None
    threads: int = 1

    def text(self) -> str:
        """The goal's text in tables: "ratio 2.2", "t/s 25 or of bandwidth 85%"."""
        value = f"{self.value:.0%}" if self.figure == "of bandwidth" else f"{self.value:g}"
        mark = " at most" if self.figure == "ms" else ""
        rest = f" or {self.otherwise.text()}" if self.otherwise else ""
        return f"{self.figure}{mark} {value}{rest}"


@dataclass(frozen=True)
class Case:
    """A test on a model. shape: "" for the default model; type: its file type.

    name: of its row. threads: the numbers to measure with, none: the requested ones. busy: other processes
    that keep a processor busy meanwhile; the first side has two threads and the second, graphml too, has one.
    """

    name: str
    shape: str
    type: str
    test: Test
    goals: tuple[Goal, ...] = ()
    repetitions: int = 5
    quant: str = ""
    threads: tuple[int, ...] = ()
    busy: int = 0


@dataclass(frozen=True)
class ServeCase:
    """A load on an engine of a model, "" for the default one."""

    name: str
    shape: str
    type: str
    load: Load
    repetitions: int = 3


@dataclass(frozen=True)
class Suite:
    """Cases that are measured together. about: a line of help. peers: whether the cases are about ratios.

    loads: cases of arrivals at an engine, in place of tests.
    """

    name: str
    about: str
    cases: Sequence[Case] = ()
    peers: bool = False
    loads: Sequence[ServeCase] = ()


BANDWIDTH = Goal("of bandwidth", 0.85, threads=2)
PROMPT, TOKENS = Test(512, 0), Test(0, 64)
BASE = "tinyllama-1.1b"


def _pair(shape: str, type: str, prompt: float, tokens: float, name: str = "") -> list[Case]:
    """Prefill and decode of a model, each with its goal ratio."""
    large = shape != DEFAULT_MODEL  # larger than any cache, so that memory is the limit
    label = name or f"{shape or 'SmolLM2'} {type}"
    decode = (Goal("ratio", tokens), BANDWIDTH) if large else (Goal("ratio", tokens),)
    return [
        Case(label, shape, type, PROMPT, (Goal("ratio", prompt),)),
        Case(label, shape, type, TOKENS, decode),
    ]


def _targets() -> list[Case]:
    found = _pair(DEFAULT_MODEL, "Q4_1", 6.0, 2.0)
    ratios = {
        "Q4_0": (2.2, 1.3), "Q8_0": (4.0, 1.3), "Q4_K_M": (2.2, 1.25), "Q5_K_M": (2.2, 1.25),
        "Q6_K": (2.2, 1.25), "IQ4_XS": (1.5, 1.25), "Q3_K_M": (1.5, 1.25), "Q2_K": (1.5, 1.25),
        "F16": (1.05, 1.15), "BF16": (1.5, 1.15),
    }  # fmt: skip
    for type, (prompt, tokens) in ratios.items():
        found += _pair(BASE, type, prompt, tokens)
    found += _pair("mixtral-small", "Q4_K_M", 4.0, 1.3)
    found += [
        Case("4 sequences", BASE, "Q4_K_M", Test(0, 64, 0, 4), (Goal("ratio", 2.0),)),
        Case("16k context", BASE, "Q4_K_M", Test(0, 16, 16384), (Goal("ratio", 1.5),)),
        Case("phi-2", "phi-2", "Q4_K_M", TOKENS, (Goal("t/s", 25.0, BANDWIDTH),)),
        Case("phi-2, first token", "phi-2", "Q4_K_M", Test(16, 0), (Goal("ms", 500.0),)),
        Case(
            "a core busy, 2 threads to 1", BASE, "Q4_K_M", TOKENS, (Goal("ratio", 0.9),), threads=(2,), busy=1
        ),
    ]
    return found


def _realizar() -> list[Case]:
    """The harness of the realizar specification, 5.2: a model of phi-2's shape in Q4_K_M."""
    model = "phi-2", "Q4_K_M"
    return [
        Case("SHORT_CONTEXT", *model, Test(3, 0), (Goal("ms", 500.0),), repetitions=10),
        Case("LONG_CONTEXT", *model, Test(2048, 0), (Goal("ms", 30000.0),), repetitions=5),
        Case("DECODE_SINGLE", *model, Test(0, 1), (Goal("t/s", 25.0),), repetitions=100),
    ]


def _das() -> list[Case]:
    """The table of dasLLAMA's tutorial: one file requantised to three formats."""
    return [
        Case(quant, DEFAULT_MODEL, "", test, quant=quant)
        for quant in ("fp32", "q8", "q4")
        for test in (PROMPT, TOKENS)
    ]


def _batch() -> list[Case]:
    return [
        Case(f"{count} sequences", BASE, "Q4_K_M", Test(0, 32, 64, count, sampled=True))
        for count in (1, 2, 4, 8, 16, 32)
    ]


def _kinds() -> list[Case]:
    """One shape of about a billion weights for each kind of architecture."""
    ratios = {"gemma3-1b": 1.0, "mamba2-1b": 1.0, "qwen35-1b": 1.3, "qwen3moe-1b": 1.3}
    return [Case(shape, shape, "Q4_K_M", TOKENS, (Goal("ratio", ratio),)) for shape, ratio in ratios.items()]


CLIENTS = (1, 8, 32)


def serve_cases(clients: Sequence[int] = CLIENTS, n_prompt: int = 256, n_gen: int = 128) -> list[ServeCase]:
    """Clients alone; with a shared prefix of 4 prompts' length; beside prompts of 16 times the length."""
    found = []
    for count in clients:
        load = Load(count, max(2, 8 // (1 + count // 8)), n_prompt, n_gen)
        name = f"{count} client{'s' * (count > 1)}"
        kinds = {
            "": load,
            ", shared prefix": replace(load, n_shared=4 * n_prompt),
            ", long prompts": replace(load, n_long=16 * n_prompt),
        }
        found += [ServeCase(name + kind, DEFAULT_MODEL, "", one) for kind, one in kinds.items()]
    return found


_ALL = (
    Suite("targets", "the speed that graphml is to have beside llama.cpp", _targets(), peers=True),
    Suite("realizar", "SHORT_CONTEXT, LONG_CONTEXT and DECODE_SINGLE on the shape of phi-2", _realizar()),
    Suite("das", "SmolLM2 kept as fp32, q8 and q4: resident memory, prefill, generation", _das()),
    Suite("kinds", "dense, recurrent, hybrid and mixture of experts beside llama.cpp", _kinds(), peers=True),
    Suite("batch", "1 to 32 sequences in one engine beside llama.cpp", _batch(), peers=True),
    Suite("serve", "1 to 32 clients of one engine: latencies and tokens per second", loads=serve_cases()),
)
SUITES: Mapping[str, Suite] = {suite.name: suite for suite in _ALL}


def suite_named(name: str, patterns: Sequence[str] = ("*",)) -> Suite:
    """The suite of that name, with the cases whose names match a pattern; UsageError if there are none."""
    if name not in SUITES:
        raise UsageError(f"suite: wanted one of {', '.join(SUITES)}; got {name!r}")
    suite = SUITES[name]
    if suite.loads:
        return replace(suite, loads=chosen(suite.loads, patterns))
    return replace(suite, cases=chosen(suite.cases, patterns))


def chosen(cases: Sequence[AnyCase], patterns: Sequence[str]) -> list[AnyCase]:
    """The cases whose names match a pattern; UsageError if there are none."""
    found = [case for case in cases if any(fnmatchcase(case.name, one) for one in patterns)]
    if not found:
        names = ", ".join(dict.fromkeys(case.name for case in cases))
        raise UsageError(f"--case: wanted a pattern of {names}; got {', '.join(patterns)}")
    return found
