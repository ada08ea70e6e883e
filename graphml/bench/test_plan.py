"""The plan of a benchmark: tests, and the settings of each.

Values only: they are sent to the processes that measure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from graphml.passes.placement_rules import with_named

LLAMA_CPP, OPENVINO = "llama.cpp", "openvino"


@dataclass(frozen=True)
class Test:
    """A prompt of n_prompt tokens and then n_gen single ones, after n_depth tokens that are not timed.

    n_parallel: sequences that run at the same time, in common steps. sampled: each token is the most likely
    one after those before it, and sampling is timed too, in graphml that of an engine; only without a prompt.
    """

    n_prompt: int
    n_gen: int
    n_depth: int = 0
    n_parallel: int = 1
    sampled: bool = False

    @property
    def name(self) -> str:
        """llama-bench's name: "pp512", "tg128 @ d4096", "pp512+tg128"; more: "tg128 x4 sampled"."""
        parts = [f"pp{self.n_prompt}"] * (self.n_prompt > 0) + [f"tg{self.n_gen}"] * (self.n_gen > 0)
        several = f" x{self.n_parallel}" if self.n_parallel > 1 else ""
        sampled = " sampled" if self.sampled else ""
        return "+".join(parts) + several + sampled + (f" @ d{self.n_depth}" if self.n_depth else "")

    @property
    def n_tokens(self) -> int:
        """Measured tokens, of all sequences."""
        return self.n_parallel * (self.n_prompt + self.n_gen)

    @property
    def n_ctx(self) -> int:
        """Tokens of one sequence at its end."""
        return self.n_prompt + self.n_gen + self.n_depth


@dataclass(frozen=True)
class SideParameters:
    """The parameters of one side. n_batch: tokens evaluated at a time; n_ubatch: tokens of one step.

    engine: "graphml" or a peer. type_k, type_v: dtypes of the cache. quant: format of weights in memory
    ("": the file's). arch: a Python file that defines the architecture ("": a known one). place: rules of
    placement; gpu_layers: how many of the last layers the backend takes, -1: all or as many as fit.
    """

    engine: str
    model: str
    backend: str
    threads: int
    n_batch: int = 2048
    n_ubatch: int = 512
    type_k: str = "f16"
    type_v: str = "f16"
    quant: str = ""
    arch: str = ""
    place: str = ""
    gpu_layers: int = -1

    @property
    def opened(self) -> str:
        """The backends that are opened: those that rules name, too."""
        return with_named(self.backend, self.place)

    @property
    def kv(self) -> str:
        """Both types as one value of the option `kv`."""
        return f"{self.type_k}/{self.type_v}"


def tests(
    prompts: Sequence[int],
    generated: Sequence[int],
    both: Sequence[tuple[int, int]],
    depths: Sequence[int],
    parallel: Sequence[int],
) -> list[Test]:
    """The tests that llama-bench makes of its options, in its order: for each depth pp, then tg, then pg."""
    kinds = [(n, 0) for n in prompts if n] + [(0, n) for n in generated if n] + list(both)
    every = (Test(*kind, depth, count) for count, depth, kind in product(parallel, depths, kinds))
    return list(dict.fromkeys(every))


def settings(
    models: Iterable[str],
    threads: Iterable[int],
    batches: Iterable[int],
    ubatches: Iterable[int],
    types: Iterable[tuple[str, str]],
    quants: Iterable[str] = ("",),
    places: Iterable[str] = ("",),
    gpu_layers: Iterable[int] = (-1,),
) -> list[SideParameters]:
    """The cross product, models first; engine and backend are set when sides are opened."""
    return [
        SideParameters(
            "graphml",
            model,
            "cpu",
            count,
            batch,
            min(batch, ubatch),
            *kinds,
            quant,
            place=place,
            gpu_layers=layers,
        )
        for model, quant, place, layers, batch, ubatch, kinds, count in product(
            models, quants, places, gpu_layers, batches, ubatches, types, threads
        )
    ]
