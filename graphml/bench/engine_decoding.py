"""Decoding of several sequences in one engine, timed over the steps in which all of them generate.

A step is timed from its planning until its sampled tokens are delivered, and so is the time between two
steps. Knows engines and their timelines; nothing of rows or processes.
"""

from __future__ import annotations

import numpy as np

from graphml.api.model import Model
from graphml.bench.test_plan import Test
from graphml.errors import BackendError
from graphml.inspect.mixed_run import endless_engine
from graphml.runtime.timeline import Step

ROOM = 256
"""Tokens of the context for what the first sequences generate while the prompts of the last are computed."""
NO_LIMIT_MS = 1e6  # prompts, which are not timed, take whole steps


class EngineDecoding:
    """An engine with room for a test's sequences, each with a prompt of its own, sampled greedily."""

    def __init__(self, model: Model, test: Test) -> None:
        self._test = test
        n_ctx = min(model.n_ctx, test.n_ctx + 1 + ROOM)
        shape = test.n_parallel, max(test.n_depth, 1)
        self._prompts = np.random.default_rng(0).integers(0, model.n_vocab, shape, np.int32)
        self._engine = endless_engine(
            model, n_ctx, max_sequences=test.n_parallel, target_itl_ms=NO_LIMIT_MS, prefix_cache=False
        )

    def run(self, n_gen: int) -> int:
        """Nanoseconds of `n_gen` tokens of every sequence, in steps that all of them share."""
        *others, last = self._prompts
        with self._engine.timeline() as timeline:
            handles = [self._engine.submit(ids) for ids in others]
            self._engine.submit(last, max_tokens=n_gen + 1).result()  # its first token is the prompt's
            for handle in handles:
                handle.cancel()
            for handle in handles:
                handle.result()
            shared = [step for step in timeline.steps if self._is_shared(step)]
        if len(shared) != n_gen:
            raise BackendError(
                f"{self._test.name}: wanted {n_gen} steps with a token of each of {self._test.n_parallel} "
                f"sequences; got {len(shared)}"
            )
        return round(1e9 * (shared[-1].end_s - shared[0].begin_s))

    def _is_shared(self, step: Step) -> bool:
        return step.n_rows == step.n_generating == self._test.n_parallel

    def close(self) -> None:
        """End the engine."""
        self._engine.close()
