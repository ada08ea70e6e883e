"""Ids into sequences, in steps of at most n_batch tokens: one long prompt, or the next tokens of many.

Knows slots, steps and logits; nothing of text, sampling or why something is evaluated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphml.backend import Progress, no_progress
from graphml.compiler.options import CompileOptions
from graphml.compiler.top_k_outputs import OF_ROW, SAMPLED, TOP_K, TOP_K_IDS, TOP_K_LOGITS
from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.runtime.executor import Executor
from graphml.runtime.slots import Slot
from graphml.sampling import (
    DeviceSample,
    DeviceSettings,
    PeekableRandom,
    SamplingParams,
    TopK,
    device_settings,
)
from graphml.system.pages import out_of_memory

Floats: TypeAlias = NDArray[np.float32]
Work: TypeAlias = Sequence[tuple[Slot, Array]]
Step: TypeAlias = list[tuple[int, int, int]]
Take: TypeAlias = Callable[[Mapping[str, Array]], None]


def _nothing(outputs: Mapping[str, Array]) -> None:
    """Take nothing of a step."""


def never() -> bool:
    """Nobody cancels."""
    return False


def check_continues(executor: Executor) -> None:
    """UsageError for a model whose tokens see later ones: it does not continue a text."""
    if not executor.architecture.causal:
        raise UsageError(
            f"generate: {executor.architecture.name} does not continue a text token by token, for "
            "its tokens see those after them; `eval` gives the logits of a whole text"
        )


def _steps(lengths: Sequence[int], n_batch: int, max_chunk: int) -> Iterator[Step]:
    """Steps that take each sequence's tokens in turn: (sequence, first token, behind the last).

    max_chunk: most tokens of one sequence in a step.
    """
    taken = [0] * len(lengths)
    while True:
        step: Step = []
        room = n_batch
        for i, length in enumerate(lengths):
            count = min(length - taken[i], max_chunk, room)
            if count:
                step.append((i, taken[i], taken[i] + count))
                taken[i] += count
                room -= count
        if not step:
            return
        yield step


def evaluate(
    executor: Executor,
    work: Work,
    n_vocab: int,
    options: CompileOptions,
    all_logits: bool = False,
    take: Take = _nothing,
    cancelled: Callable[[], bool] = never,
    progress: Progress = no_progress,
) -> list[Floats]:
    """Append ids (at least one) to each slot, all of one cache: for each the logits float32 [rows, n_vocab].

    rows: 1, after the last id, or all_logits: after each. take: gets the outputs of every step. An empty list
    when cancelled. Then, and after an error, slots may hold more: the caller rolls them back.
    Where tokens see later ones, all of a text must come at once: a UsageError otherwise.
    """
    lengths = [len(ids) for _, ids in work]
    try:
        out = [np.empty((length if all_logits else 1, n_vocab), np.float32) for length in lengths]
    except MemoryError as error:
        raise out_of_memory(f"logits of {sum(lengths)} tokens", error, "give fewer tokens at once") from None

    def keep(step: Step, outputs: Mapping[str, Array]) -> None:
        row = 0
        for i, first, end in step:
            if all_logits:
                out[i][first:end] = outputs["logits"][row : row + end - first]
            elif end == lengths[i]:
                out[i][0] = outputs["logits"][row]
            row += end - first if all_logits else 1
        take(outputs)

    return out if _run(executor, work, options, all_logits, keep, cancelled, progress) else []


def evaluate_top_k(
    executor: Executor,
    work: Work,
    n_vocab: int,
    options: CompileOptions,
    sampled_by: Sequence[tuple[SamplingParams, PeekableRandom]],
    take: Take = _nothing,
    cancelled: Callable[[], bool] = never,
    progress: Progress = no_progress,
) -> list[TopK]:
    """The same for an executor that `has_top_k`: the top k of the logits after each slot's last id.

    sampled_by: by what the next token of each will be sampled. The device samples it, too, where it can.
    """
    settings = [device_settings(params, numbers.peek(0), TOP_K) for params, numbers in sampled_by]
    found: dict[int, TopK] = {}

    def keep(step: Step, outputs: Mapping[str, Array]) -> None:
        for row, (i, _, end) in enumerate(step):
            if end == len(work[i][1]):
                found[i] = top_k_of(outputs, row, n_vocab, settings[i], _row_of(executor, outputs, row))
        take(outputs)

    done = _run(executor, work, options, False, keep, cancelled, progress, settings)
    return [found[i] for i in range(len(work))] if done else []


def top_k_of(
    outputs: Mapping[str, Array],
    row: int,
    n_vocab: int,
    settings: DeviceSettings | None,
    whole: Callable[[], Floats | None] = lambda: None,
) -> TopK:
    """The top k of a row of outputs, or the device's sample alone; settings: by which the device sampled."""
    log_sum, token, before, upto = map(float, outputs[OF_ROW][row])
    sampled = None if settings is None else DeviceSample(int(token), before, upto, settings)
    if TOP_K_IDS in outputs:
        return TopK(outputs[TOP_K_IDS][row], outputs[TOP_K_LOGITS][row], log_sum, n_vocab, whole, sampled)
    return TopK(outputs[SAMPLED][row : row + 1], np.zeros(1, np.float32), log_sum, n_vocab, whole, sampled)


def _row_of(executor: Executor, outputs: Mapping[str, Array], row: int) -> Callable[[], Floats | None]:
    number = executor.n_steps

    def whole() -> Floats | None:
        with executor.lock:  # the outputs are the executor's until the next step
            return outputs["logits"][row].copy() if executor.n_steps == number else None

    return whole


def _run(
    executor: Executor,
    work: Work,
    options: CompileOptions,
    all_logits: bool,
    keep: Callable[[Step, Mapping[str, Array]], None],
    cancelled: Callable[[], bool],
    progress: Progress,
    settings: Sequence[DeviceSettings | None] = (),
) -> bool:
    """Take all steps; keep: gets each with its outputs, in the order of their rows. False when cancelled."""
    cache, state, group = work[0][0].cache, work[0][0].state, work[0][0].group
    sampling = {slot.sequence: one for (slot, _), one in zip(work, settings, strict=False) if one is not None}
    lengths = [len(ids) for _, ids in work]
    total, done = sum(lengths), 0
    held = sum(slot.length for slot, _ in work)
    if not executor.architecture.causal and (held or total > executor.n_batch):
        raise UsageError(
            f"in {executor.architecture.name} tokens see those after them, so that all of a text must be "
            f"evaluated at once: wanted at most n_batch = {executor.n_batch} ids, and rewind(0) before "
            f"others; got {total}, where {held} are held"
        )
    if executor.encodes and not all(slot.source_length for slot, _ in work):
        raise UsageError(
            f"{executor.architecture.name} continues what answers a source text: wanted one that was "
            "read before, see Session.encode"
        )
    tell = progress if total > executor.n_batch else no_progress
    if cache.states is not None:
        with executor.lock:
            for slot, _ in work:
                slot.restore_states()
        _keep_states(executor, work)  # what a rewind to before this prompt goes back to
    for step in _steps(lengths, executor.n_batch, executor.max_chunk):
        if cancelled():
            return False
        tell("prefill", done, total)
        given = {work[i][0].sequence: work[i][1][first:end] for i, first, end in step}
        if group is not None and not group.alone and not all_logits and not options.hidden:
            ((sequence, ids),) = given.items()
            group.steps.run(sequence, held + done, ids, functools.partial(keep, step))
        else:
            with executor.lock:  # the outputs are the executor's until the next step
                keep(step, executor.values(given, cache, state, all_logits, options, sampling))
        done += sum(end - first for _, first, end in step)
    if cache.states is not None:
        _keep_states(executor, work)
    tell("prefill", total, total)
    return True


def _keep_states(executor: Executor, work: Work) -> None:
    """Keep copies of recurrent states at both ends of a prompt, not between single tokens."""
    with executor.lock:
        for slot, ids in work:
            if len(ids) > 1:
                slot.keep_states()
