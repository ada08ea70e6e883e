"""How long a generation took: a meter that runs along, and the figures read off it; those of an engine.

Knows the clock and counts; nothing of models, tokens or text.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from graphml.runtime.blocks.drafting import Drafts


@dataclass(frozen=True)
class Stats:
    """Figures of the latest `generate` or `eval` of a session; `dict(stats)` gives them by name.

    n_prompt: ids evaluated before the first token; n_cached: those of them that were not computed, but copied
    from another session that began with them; n_gen: tokens given out; ttft_s: seconds to the first of them,
    prompt included; prefill_tps, gen_tps: computed tokens per second of the prompt, and of the tokens after
    the first; n_drafted, n_accepted: tokens computed as drafts, and those that were right. What was not
    measured is 0. Time that the caller spends between tokens does not count, nor does the compiling of
    programs that run for the first time.
    """

    n_prompt: int = 0
    n_cached: int = 0
    n_gen: int = 0
    ttft_s: float = 0.0
    prefill_tps: float = 0.0
    gen_tps: float = 0.0
    n_drafted: int = 0
    n_accepted: int = 0

    def keys(self) -> list[str]:
        """The names of the figures."""
        return [field.name for field in dataclasses.fields(self)]

    def __getitem__(self, name: str) -> float:
        if name not in self.keys():
            raise KeyError(name)
        return float(getattr(self, name)) if name.endswith(("_s", "_tps")) else int(getattr(self, name))


@dataclass
class Meter:
    """Counts tokens and the seconds spent in `prompt()` and `token()` blocks.

    at_once: tokens come of steps for all of them, so that the speed is that of all, the first included.
    """

    n_prompt: int = 0
    n_cached: int = 0
    n_gen: int = 0
    drafts: Drafts | None = None
    at_once: bool = False
    _prompt_s: float = 0.0
    _token_s: list[float] = field(default_factory=lambda: [0.0, 0.0])

    @contextmanager
    def prompt(self, count: int) -> Iterator[None]:
        """Time the evaluation of `count` ids of the prompt; one that fails does not count."""
        start = time.perf_counter()
        yield
        self._prompt_s += time.perf_counter() - start
        self.n_prompt += count

    @contextmanager
    def token(self) -> Iterator[None]:
        """Time the making of one token, the first apart from the others."""
        start = time.perf_counter()
        yield
        self._token_s[min(self.n_gen, 1)] += time.perf_counter() - start

    def stats(self) -> Stats:
        """Return the figures so far."""
        first, later = self._token_s
        timed, seconds = (self.n_gen, first + later) if self.at_once else (self.n_gen - 1, later)
        return Stats(
            n_prompt=self.n_prompt,
            n_cached=self.n_cached,
            n_gen=self.n_gen,
            ttft_s=self._prompt_s + first if self.n_gen else 0.0,
            prefill_tps=(self.n_prompt - self.n_cached) / self._prompt_s if self._prompt_s else 0.0,
            gen_tps=timed / seconds if seconds and timed > 0 else 0.0,
            n_drafted=self.drafts.n_drafted if self.drafts else 0,
            n_accepted=self.drafts.n_accepted if self.drafts else 0,
        )


@dataclass(frozen=True)
class EngineStats:
    """Counts of an engine. blocks_used: held by running sequences; blocks_shared: by several of them.

    blocks_free: all others; blocks_kept: those of them whose content can still be found; blocks_evicted: how
    often such a content was given up. hit_tokens: ids of prompts found in blocks so far. n_steps: so far;
    step_s: seconds of the latest; step_p50_s, rows_per_step: median seconds and mean rows of the latest 256.
    sequences_per_step: mean number of sequences that a step computed rows of, of all steps.
    n_drafts, n_drafted, n_accepted: drafts so far, their tokens, and those of them that were right.
    """

    running: int
    waiting: int
    blocks_used: int
    blocks_shared: int
    blocks_free: int
    blocks_kept: int
    blocks_evicted: int
    hit_tokens: int
    n_preempted: int
    n_steps: int
    step_s: float
    step_p50_s: float
    rows_per_step: float
    sequences_per_step: float = 0.0
    n_drafts: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
