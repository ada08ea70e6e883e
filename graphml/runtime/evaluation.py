"""Ids into pinned sequences, in steps of at most n_batch tokens: one long prompt, or the next tokens of many.

Knows sequences, steps and logits; nothing of text, sampling or why something is evaluated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from graphml.backend import Progress, no_progress
from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.ir.op import Array, Floats
from graphml.pages import out_of_memory
from graphml.runtime.pinned import Pinned
from graphml.runtime.sampled_rows import device_settings_of, top_k_of
from graphml.sampling import PeekableRandom, SamplingParams, TopK

Work: TypeAlias = Sequence[tuple[Pinned, Array]]
Step: TypeAlias = list[tuple[int, int, int]]
Take: TypeAlias = Callable[[Mapping[str, Array]], None]


def _nothing(outputs: Mapping[str, Array]) -> None:
    """Take nothing of a step."""


def never() -> bool:
    """Nobody cancels."""
    return False


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
    work: Work,
    n_vocab: int,
    options: CompileOptions,
    all_logits: bool = False,
    take: Take = _nothing,
    cancelled: Callable[[], bool] = never,
    progress: Progress = no_progress,
) -> list[Floats]:
    """Append ids (at least one) to each sequence of a room: for each the logits float32 [rows, n_vocab].

    rows: 1, after the last id, or all_logits: after each. take: gets the outputs of every step. An empty list
    when cancelled. Then, and after an error, sequences may hold more: the caller rolls them back.
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

    return out if _run(work, options, all_logits, keep, cancelled, progress) else []


def evaluate_top_k(
    work: Work,
    n_vocab: int,
    options: CompileOptions,
    sampled_by: Sequence[tuple[SamplingParams, PeekableRandom]],
    take: Take = _nothing,
    cancelled: Callable[[], bool] = never,
    progress: Progress = no_progress,
) -> list[TopK]:
    """The same for an executor that `has_top_k`: the top k of the logits after each sequence's last id.

    sampled_by: by what the next token of each will be sampled. The device samples it, too, where it can.
    """
    for (sequence, _), (params, numbers) in zip(work, sampled_by, strict=True):
        sequence.samples_by(params, numbers)
    tops: dict[int, TopK] = {}

    def keep(step: Step, outputs: Mapping[str, Array]) -> None:
        for row, (i, _, end) in enumerate(step):
            sequence, ids = work[i]
            if end == len(ids):
                whole = _row_of(sequence, outputs, row)
                tops[i] = top_k_of(outputs, row, n_vocab, device_settings_of(sequence), whole)
        take(outputs)

    done = _run(work, options, False, keep, cancelled, progress)
    return [tops[i] for i in range(len(work))] if done else []


def drafted_logits(
    sequence: Pinned, ids: Array, n_again: int, options: CompileOptions, take: Take = _nothing
) -> Floats:
    """Append ids to a pinned sequence: the logits behind each, float32 [len(ids), n_vocab].

    The first `n_again` were evaluated before. take: gets the outputs. Whoever calls says which of them it
    keeps, and has the others rolled back.
    """
    found = list[Floats]()

    def read(outputs: Mapping[str, Array]) -> None:
        take(outputs)
        found.append(outputs["logits"][: len(ids)].copy())

    with sequence.room.executor.lock:
        sequence.restore_states()
        n_drafted = len(ids) - 1 - n_again
        rows = replace(sequence.rows(ids, len(ids)), n_drafted=n_drafted, n_again=n_again)
        sequence.room.run({sequence: rows}, read, options)
    return found[0]


def _row_of(sequence: Pinned, outputs: Mapping[str, Array], row: int) -> Callable[[], Floats | None]:
    executor = sequence.room.executor
    number = executor.n_steps

    def whole() -> Floats | None:
        with executor.lock:  # the outputs are the executor's until the next step
            return outputs["logits"][row].copy() if executor.n_steps == number else None

    return whole


def _run(
    work: Work,
    options: CompileOptions,
    all_logits: bool,
    keep: Callable[[Step, Mapping[str, Array]], None],
    cancelled: Callable[[], bool],
    progress: Progress,
) -> bool:
    """Take all steps; keep: gets each with its outputs, in the order of their rows. False when cancelled."""
    room = work[0][0].room
    executor = room.executor
    lengths = [len(ids) for _, ids in work]
    total, done = sum(lengths), 0
    _check(work, total)
    tell = progress if total > executor.n_batch else no_progress
    is_recurrent = work[0][0].states is not None
    if is_recurrent:
        with executor.lock:
            for sequence, _ in work:
                sequence.restore_states()
        _keep_states(work)  # what a rewind to before this prompt goes back to
    for step in _steps(lengths, executor.n_batch, executor.max_chunk):
        if cancelled():
            return False
        tell("prefill", done, total)
        rows = {
            work[i][0]: work[i][0].rows(work[i][1][first:end], end - first if all_logits else 1)
            for i, first, end in step
        }
        read = functools.partial(keep, step)
        if work[0][0].shares and not all_logits and not options.hidden:
            room.run_with_others(work[0][0], rows[work[0][0]], read)
        else:
            room.run(rows, read, options)
        done += sum([end - first for _, first, end in step])
    if is_recurrent:
        _keep_states(work)
    tell("prefill", total, total)
    return True


def _check(work: Work, total: int) -> None:
    """UsageError where tokens see later ones and are not all there, or a source text was not read."""
    executor = work[0][0].room.executor
    held = sum([sequence.n_computed for sequence, _ in work])
    if not executor.architecture.causal and (held or total > executor.n_batch):
        raise UsageError(
            f"in {executor.architecture.name} tokens see those after them, so that all of a text must be "
            f"evaluated at once: wanted at most n_batch = {executor.n_batch} ids, and rewind(0) before "
            f"others; got {total}, where {held} are held"
        )
    if executor.encodes and not all(sequence.n_source for sequence, _ in work):
        raise UsageError(
            f"{executor.architecture.name} continues what answers a source text: wanted one that was "
            "read before, see Session.encode"
        )


def _keep_states(work: Work) -> None:
    """Keep copies of recurrent states at both ends of a prompt, not between single tokens."""
    with work[0][0].room.executor.lock:
        for sequence, ids in work:
            if len(ids) > 1:
                sequence.keep_states()
