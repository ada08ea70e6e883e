"""Run-ahead decoding: submits step t + 1 before the host has read the outputs of step t.

The token of step t + 1 is the one that the device itself samples at the end of step t. The host reads the
outputs of t, samples from them as without run-ahead, and drops t + 1 where its token is another. Knows tokens
and samplers; nothing of text or why a generation ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.compiler.options import CompileOptions
from graphml.compiler.top_k_outputs import SAMPLED
from graphml.runtime.plans.step_plan import Rows, StepPlan
from graphml.runtime.sessions.committed import Committed
from graphml.runtime.sessions.pinned import Pinned
from graphml.runtime.steps.computed_plan import BegunPlan
from graphml.runtime.steps.sampled_rows import ahead_outputs, device_settings_of, top_k_of
from graphml.sampling import (
    PeekableRandom,
    SamplingParams,
    device_samples_row,
    flaw_of,
    sampler_of,
)

_ROWS_AFTER_EDGE = 8
"""So many steps give their rows along after a number that was too near to an edge to sample by: the flatter a
distribution is, the more edges it has, and the next is like it."""


class Ahead:
    """The steps of one generation. Nothing is submitted ahead at first.

    outputs: what is read of each. ready: whether the device sampled the latest token too; if not, the next is
    better sampled from the row.
    """

    def __init__(
        self,
        sequence: Pinned,
        options: CompileOptions,
        params: SamplingParams,
        numbers: PeekableRandom,
        n_vocab: int,
        outputs: tuple[str, ...],
    ) -> None:
        sequence.samples_by(params, numbers)
        self._sequence, self._runner, self._options = sequence, sequence.room.runner, options
        self._params, self._numbers, self._n_vocab = params, numbers, n_vocab
        self._of_row, self._outputs = device_samples_row(params), outputs
        self._rows_along = 0
        self._next: BegunPlan | None = None
        self.ready = True

    def token(self, held: Committed, more: bool) -> int | None:
        """The id that follows the tokens, of which the last at most waits; None where logits are no numbers.

        more: whether another token will follow the next one, if that is the predicted one.
        """
        step, self._next = self._next, None
        if step is None:
            held.last_waits()  # what it gave may be gone: once more
            step = self._begin(held.history()[-1:], None)
        assert step is not None
        before = held.latest
        if more and self._sequence.n_computed < self._sequence.n_ctx:
            self._next = self._begin([0], step)  # of whatever id the device has sampled
        outputs = step.outputs()
        sampler = sampler_of(self._params)
        top = top_k_of(outputs, 0, self._n_vocab, device_settings_of(self._sequence))
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

    def _begin(self, ids: Sequence[int], after: BegunPlan | None) -> BegunPlan | None:
        """Submit the step of an id; None where what the device has sampled after another step is gone."""
        sequence, start = self._sequence, self._sequence.n_computed
        outputs = (*self._outputs, "logits") if self._rows_along else self._outputs
        rows = Rows(sequence, start, 1, 1, ids=np.array(ids, np.int32))
        with sequence.room.executor.lock:
            try:
                sequence.append(1)
                step = self._runner.submit(StepPlan((rows,), options=self._options), after, outputs)
            except BaseException:
                sequence.rewind(start)
                raise
            if step is None:
                sequence.rewind(start)
            return step

    def missed(self, row_was_read: bool) -> None:
        """The latest token was not chosen by `token`. Rows that the device samples are read from now on."""
        self.ready = not row_was_read or self._rows_along > 0

    def drop(self) -> None:
        """Forget the step that is ahead, if there is one; its cell is in no commit and is rolled back."""
        self._next = None


def steps_ahead(
    sequence: Pinned,
    options: CompileOptions,
    params: SamplingParams,
    numbers: PeekableRandom,
    n_vocab: int,
) -> Ahead | None:
    """The steps of a new generation, or None where the device cannot sample as the parameters say.

    None also where values are captured, which are read at every step, and for recurrent models, whose state
    cannot be rolled back.
    """
    executor, outputs = sequence.room.executor, ahead_outputs(params)
    if not executor.has_top_k or options.keep or outputs is None or executor.recurrent:
        return None
    if sequence.room.runner.pinned_program(1, sequence.room.n_sequences, False, options).ahead is None:
        return None
    return Ahead(sequence, options, params, numbers, n_vocab, outputs)
