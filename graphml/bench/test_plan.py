"""What is measured: tests, and the settings that each is measured at.

Values only: they travel to the processes that measure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

LLAMA_CPP = "llama.cpp"


@dataclass(frozen=True)
class Test:
    """A prompt of n_prompt tokens and then n_gen single ones, behind n_depth tokens that are not timed.

    n_parallel: sequences that do so at the same time, a step for all of them together.
    """

    n_prompt: int
    n_gen: int
    n_depth: int = 0
    n_parallel: int = 1

    @property
    def name(self) -> str:
        """As llama-bench writes it: "pp512", "tg128 @ d4096", "pp512+tg128"; of several "tg128 x4"."""
        parts = [f"pp{self.n_prompt}"] * (self.n_prompt > 0) + [f"tg{self.n_gen}"] * (self.n_gen > 0)
        several = f" x{self.n_parallel}" if self.n_parallel > 1 else ""
        return "+".join(parts) + several + (f" @ d{self.n_depth}" if self.n_depth else "")

    @property
    def n_tokens(self) -> int:
        """Tokens in the time, those of all sequences."""
        return self.n_parallel * (self.n_prompt + self.n_gen)

    @property
    def n_ctx(self) -> int:
        """Tokens that one sequence holds at its end."""
        return self.n_prompt + self.n_gen + self.n_depth


@dataclass(frozen=True)
class Setting:
    """What one side is opened with. n_batch: tokens given at a time; n_ubatch: tokens of one step.

    engine: "graphml" or a peer. type_k, type_v: dtypes of the cache. quant: how weights are kept in memory
    ("": as the file has them). arch: a Python file that defines the architecture ("": a known one).
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


def tests(
    prompts: Sequence[int],
    generated: Sequence[int],
    both: Sequence[tuple[int, int]],
    depths: Sequence[int],
    parallel: Sequence[int],
) -> list[Test]:
    """The tests that llama-bench makes of its options, in its order: of a depth pp, then tg, then pg."""
    kinds = [(n, 0) for n in prompts if n] + [(0, n) for n in generated if n] + list(both)
    found = (Test(*kind, depth, count) for count, depth, kind in product(parallel, depths, kinds))
    return list(dict.fromkeys(found))


def settings(
    models: Iterable[str],
    threads: Iterable[int],
    batches: Iterable[int],
    ubatches: Iterable[int],
    types: Iterable[tuple[str, str]],
    quants: Iterable[str] = ("",),
) -> list[Setting]:
    """The cross product, models first; engine and backend are filled in by who opens the sides."""
    return [
        Setting("graphml", model, "cpu", count, batch, min(batch, ubatch), *kinds, quant)
        for model, quant, batch, ubatch, kinds, count in product(
            models, quants, batches, ubatches, types, threads
        )
    ]
