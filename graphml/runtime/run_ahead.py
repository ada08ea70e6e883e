"""Run-ahead decoding: submits step t + 1 before the host has read the outputs of step t.

The token of step t + 1 is the one that the device itself samples at the end of step t. The host reads the
outputs of t, samples from them as without run-ahead, and drops t + 1 where its token is another. Knows tokens
and samplers; nothing of text or why a generation ends.
"""

from __future__ import annotations

from graphml.compiler.options import CompileOptions
from graphml.compiler.top_k_outputs import OF_ROW, SAMPLED, TOP_K, TOP_K_IDS, TOP_K_LOGITS
from graphml.runtime.begun_step import Begun
from graphml.runtime.committed import Committed
from graphml.runtime.evaluation import top_k_of
from graphml.runtime.executor import Executor
from graphml.runtime.slots import Slot
from graphml.sampling import (
    DeviceSettings,
    Enough,
    PeekableRandom,
    SamplingParams,
    device_samples_row,
    device_settings,
    flaw_of,
    sampler_of,
    top_k_enough,
)

_WITH_ROW = (TOP_K_IDS, TOP_K_LOGITS, "logits")
"""Where the top-k may not be enough to sample, the row is read too: else its step would run once more."""
_ROWS_AFTER_EDGE = 8
"""So many steps give their rows along after a number that was too near to an edge to sample by: the flatter a
distribution is, the more edges it has, and the next is like it."""


class Ahead:
    """The steps of one generation. Nothing is submitted ahead at first.

    ready: whether the device sampled the latest token too; if not, the next is better sampled from the row.
    """

    def __init__(
        self,
        executor: Executor,
        slot: Slot,
        options: CompileOptions,
        params: SamplingParams,
        numbers: PeekableRandom,
        n_vocab: int,
    ) -> None:
        self._executor, self._slot, self._options = executor, slot, options
        self._params, self._numbers, self._n_vocab = params, numbers, n_vocab
        self._of_row = device_samples_row(params)
        self._outputs: tuple[str, ...] = (SAMPLED, OF_ROW)
        if not params.greedy and not self._of_row:
            always = top_k_enough(params, TOP_K) is Enough.ALWAYS
            self._outputs += (TOP_K_IDS, TOP_K_LOGITS) if always else _WITH_ROW
        self._rows_along = 0
        self._next: Begun | None = None
        self.ready = True

    def token(self, held: Committed, more: bool) -> int | None:
        """The id that follows the tokens, of which the last at most waits; None where logits are no numbers.

        more: whether another token will follow the next one, if that is the predicted one.
        """
        step, self._next = self._next, None
        if step is None:
            held.last_waits()  # what it gave may be gone: once more
            step = self._begin(held.history()[-1], 0)
        before = held.latest
        if more and self._slot.length < self._slot.cache.n_ctx:
            with self._executor.lock:
                if self._executor.n_steps == step.number:  # what it has sampled is still there
                    self._next = self._begin(None, 1)
        outputs = step.outputs()
        sampler = sampler_of(self._params)
        top = top_k_of(outputs, 0, self._n_vocab, self._settings(0))
        token = sampler.sample_top_k(top, self._numbers)
        if self._of_row:
            self._rows_along = _ROWS_AFTER_EDGE if token is None else max(self._rows_along - 1, 0)
        if token is None and "logits" in outputs and flaw_of(outputs["logits"][0]) is None:
            token = sampler.sample(outputs["logits"][0], (), self._numbers)
        self.ready = token == int(outputs[SAMPLED][0])
        if not self.ready:
            self.drop()
        if token is not None:
            held.evaluated(before)
        return token

    def _begin(self, token: int | None, n_before: int) -> Begun:
        slot, settings = self._slot, self._settings(n_before)
        outputs = (*self._outputs, "logits") if self._rows_along else self._outputs
        return self._executor.begin(
            slot.sequence, token, slot.cache, slot.state, settings, outputs, self._options
        )

    def _settings(self, n_before: int) -> DeviceSettings:
        """How the device samples the token that comes after so many others."""
        settings = device_settings(self._params, self._numbers.peek(n_before), TOP_K)
        assert settings is not None
        return settings

    def missed(self, row_was_read: bool) -> None:
        """The latest token was not chosen by `token`. Rows that the device samples are read from now on."""
        self.ready = not row_was_read or self._rows_along > 0

    def drop(self) -> None:
        """Forget the step that is ahead, if there is one; its cell is in no commit and is rolled back."""
        self._next = None


def steps_ahead(
    executor: Executor,
    slot: Slot,
    options: CompileOptions,
    params: SamplingParams,
    numbers: PeekableRandom,
    n_vocab: int,
) -> Ahead | None:
    """The steps of a new generation, or None where the device cannot sample as the parameters say.

    None also where values are captured, which are read at every step, and for recurrent models, whose state
    cannot be rolled back.
    """
    if not executor.has_top_k or options.keep or device_settings(params, 0.0, TOP_K) is None:
        return None
    if executor.recurrent:
        return None
    if executor.programs.compiled_for(1, len(slot.cache.lengths), options=options).ahead is None:
        return None
    return Ahead(executor, slot, options, params, numbers, n_vocab)
