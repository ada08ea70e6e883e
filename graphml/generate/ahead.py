"""Steps of a session that are handed to the device before the host has seen what the step before it gave.

While a device works at step t, step t + 1 waits there already: its token is the one that the device itself
draws at the end of t. The host reads what t gave, decides by it as ever, and drops t + 1 where it decided
otherwise. Knows tokens and samplers; nothing of text or why a generation ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphml.backend import AheadProgram
from graphml.engine.candidates import BEST_IDS, BEST_LOGITS, DRAWN, LOG_SUM, N_BEST
from graphml.engine.compile import CompileOptions
from graphml.engine.executor import Begun, Executor
from graphml.engine.slots import Slot
from graphml.generate.sampling import (
    Best,
    Foreseen,
    SamplingParams,
    decides_always,
    draw_settings,
    sampler_of,
)
from graphml.ir.op import Array

_WITH_ROW = (BEST_IDS, BEST_LOGITS, "logits")
"""Where the best may not tell, the row is read too: the device would have to make it once more."""


class Ahead:
    """The steps of one generation. Nothing is ahead at first.

    ready: whether the latest token was foreseen; where not, the next is better decided with the row at hand.
    """

    def __init__(
        self,
        executor: Executor,
        slot: Slot,
        options: CompileOptions,
        params: SamplingParams,
        numbers: Foreseen,
        n_vocab: int,
    ) -> None:
        self._executor, self._slot, self._options = executor, slot, options
        self._params, self._numbers, self._n_vocab = params, numbers, n_vocab
        self._wanted: tuple[str, ...] = (DRAWN, LOG_SUM)
        if not params.greedy:
            self._wanted += (BEST_IDS, BEST_LOGITS) if decides_always(params, N_BEST) else _WITH_ROW
        self._next: Begun | None = None
        self.ready = True

    def token(self, tokens: Sequence[int], more: bool) -> int | None:
        """The id that follows the tokens, of which the last at most waits; None where logits are no numbers.

        more: whether another token will follow the one that comes next, if it is the one that is foreseen.
        """
        step, self._next = self._next, None
        if step is None:
            if self._slot.length == len(tokens):
                self._slot.rewind(len(tokens) - 1)  # what it gave is gone: once more
            step = self._begin(tokens[-1], 0)
        if more and self._slot.length < self._slot.cache.n_ctx:
            with self._executor.lock:
                if self._executor.n_steps == step.number:  # what it has drawn is still there
                    self._next = self._begin(None, 1)
        outputs = step.outputs()
        sampler = sampler_of(self._params)
        token = sampler.sample_best(self._read(outputs), self._numbers)
        if token is None and "logits" in outputs:
            token = sampler.sample(outputs["logits"][0], (), self._numbers)
        self.ready = token == int(outputs[DRAWN][0])
        if not self.ready:
            self.drop()
        return token

    def _begin(self, token: int | None, n_before: int) -> Begun:
        settings = draw_settings(self._params, self._numbers.ahead(n_before), N_BEST)
        assert settings is not None
        slot = self._slot
        return self._executor.begin(
            slot.sequence, token, slot.cache, slot.state, settings, self._wanted, self._options
        )

    def _read(self, outputs: Mapping[str, Array]) -> Best:
        log_sum = float(outputs[LOG_SUM][0, 0])
        if BEST_IDS in outputs:
            return Best(outputs[BEST_IDS][0], outputs[BEST_LOGITS][0], log_sum, self._n_vocab)
        return Best(outputs[DRAWN][:1], np.zeros(1, np.float32), log_sum, self._n_vocab)

    def drop(self) -> None:
        """Forget the step that is ahead, if there is one."""
        if self._next is not None:
            self._next = None
            self._slot.rewind(self._slot.length - 1)


def steps_ahead(
    executor: Executor,
    slot: Slot,
    options: CompileOptions,
    params: SamplingParams,
    numbers: Foreseen,
    n_vocab: int,
) -> Ahead | None:
    """The steps of a generation that begins, or None where the device cannot foresee what is drawn.

    Values that are kept beside the logits are read step by step, so with them nothing is ahead either; nor
    where a step that was too much could not be taken back.
    """
    if not executor.gives_best or options.keep or draw_settings(params, 0.0, N_BEST) is None:
        return None
    if executor.recurrent:
        return None
    program = executor.compiled_for(1, len(slot.cache.lengths), options=options).program
    if not isinstance(program, AheadProgram) or not program.runs_ahead:
        return None
    return Ahead(executor, slot, options, params, numbers, n_vocab)
