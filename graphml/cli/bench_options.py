"""The options of `graphml bench`: llama-bench's names where it has them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from graphml.bench.suites import SUITES
from graphml.cli.options import Architecture, Offline, Source

Models = Annotated[
    list[str] | None,
    typer.Option("-m", "--model", metavar="FILE", help="A model's file or short name; may be repeated."),
]
Hub = Annotated[
    list[str] | None,
    typer.Option("-hf", "--hf", metavar="USER/REPO:QUANT", help="A model of the Hugging Face hub."),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME",
        help="A model of random weights made once in the cache folder: tinyllama-1.1b, phi-2, ...",
    ),
]
Types = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="File types of --shape, as llama-quantize names them; by default Q4_K_M.",
    ),
]
Prompts = Annotated[
    list[str] | None,
    typer.Option("-p", "--n-prompt", metavar="N", help="Tokens of the prompt; by default 512."),
]
Generated = Annotated[
    list[str] | None, typer.Option("-n", "--n-gen", metavar="N", help="Tokens to generate; by default 128.")
]
Both = Annotated[
    list[str] | None,
    typer.Option("-pg", "--n-prompt-gen", metavar="PP,TG", help="A prompt and then tokens, timed together."),
]
Depths = Annotated[
    list[str] | None,
    typer.Option(
        "-d", "--n-depth", metavar="N", help="Tokens in the context before, not timed; by default 0."
    ),
]
Parallel = Annotated[
    list[str] | None,
    typer.Option(
        "-npl", "--n-parallel", metavar="N", help="Sequences that are evaluated together; by default 1."
    ),
]
LogicalBatch = Annotated[
    list[str] | None,
    typer.Option("-b", "--batch-size", metavar="N", help="Tokens given at a time; by default 2048."),
]
UnitBatch = Annotated[
    list[str] | None,
    typer.Option("-ub", "--ubatch-size", metavar="N", help="Tokens of one step; by default 512."),
]
Threads = Annotated[
    list[str] | None,
    typer.Option("-t", "--threads", metavar="N", help="Worker threads; by default the physical cores."),
]
CacheK = Annotated[
    list[str] | None,
    typer.Option("-ctk", "--cache-type-k", metavar="TYPE", help="Type of the keys; by default f16."),
]
CacheV = Annotated[
    list[str] | None,
    typer.Option("-ctv", "--cache-type-v", metavar="TYPE", help="Type of the values; by default f16."),
]
Quants = Annotated[
    list[str] | None,
    typer.Option(
        "--quant", metavar="MODE", help="How weights are kept in memory; by default as the file has them."
    ),
]
Backends = Annotated[
    str, typer.Option("--backend", metavar="NAMES", help="Backends to measure in turns, with commas.")
]
Peer = Annotated[
    str | None, typer.Option("--peer", metavar="NAME", help="Another engine to measure in turns: llama.cpp.")
]
PeerPython = Annotated[
    str | None,
    typer.Option(
        "--peer-python", metavar="PYTHON", help="The Python that has the peer, if it is not this one."
    ),
]
Repetitions = Annotated[
    int | None, typer.Option("-r", "--repetitions", min=1, help="Rounds of each test; by default 5.")
]
SuiteName = Annotated[
    str | None,
    typer.Option("--suite", metavar="NAME", help=f"Tests with a name: {', '.join(SUITES)}."),
]
Cases = Annotated[
    list[str] | None,
    typer.Option("--case", metavar="PATTERN", help="Only the suite's cases of such a name, as '*Q4_0'."),
]
Plots = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FOLDER", help="Draw what was measured; needs the extra plots."),
]
NoWarmUp = Annotated[bool, typer.Option("--no-warmup", help="Time the first run too.")]
Delay = Annotated[
    float, typer.Option("--delay", min=0.0, max=3600.0, help="Seconds to wait before each test.")
]
Output = Annotated[
    str, typer.Option("-o", "--output", help="What stdout gets: md, csv, json, jsonl, sql, html.")
]
OutputError = Annotated[
    str | None, typer.Option("-oe", "--output-err", help="What stderr gets too: one of these.")
]


@dataclass(frozen=True)
class Which:
    """The models."""

    model: Models = None
    hf: Hub = None
    shape: Shapes = None
    type: Types = None
    arch: Architecture = None
    offline: Offline = None

    def finding(self, hf: str | None = None) -> Source:
        """How one of them is looked for."""
        return Source(hf, self.offline)


@dataclass(frozen=True)
class What:
    """The tests."""

    n_prompt: Prompts = None
    n_gen: Generated = None
    pg: Both = None
    n_depth: Depths = None
    parallel: Parallel = None


@dataclass(frozen=True)
class With:
    """The settings that each test is run with, in all combinations."""

    batch_size: LogicalBatch = None
    ubatch_size: UnitBatch = None
    threads: Threads = None
    cache_type_k: CacheK = None
    cache_type_v: CacheV = None
    quant: Quants = None


@dataclass(frozen=True)
class How:
    """The sides, the rounds, and tests that have a name."""

    backend: Backends = "cpu"
    peer: Peer = None
    peer_python: PeerPython = None
    repetitions: Repetitions = None
    no_warmup: NoWarmUp = False
    delay: Delay = 0.0
    suite: SuiteName = None
    case: Cases = None


@dataclass(frozen=True)
class Written:
    """What becomes of the rows."""

    plot: Plots = None
    output: Output = "md"
    output_err: OutputError = None
