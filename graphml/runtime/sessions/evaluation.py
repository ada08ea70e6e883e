"""Ids into pinned sequences, in steps of at most n_batch tokens: one long prompt, or the next tokens of many.

Knows sequences, steps and logits; nothing of text, sampling or why something is evaluated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from graphml.backend import Progress, no_progress
from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.ir.op import Array, Floats
from graphml.runtime.plans.prompt_scores import MOST_ROWS
from graphml.runtime.sessions.pinned import Part, Pinned
from graphml.runtime.steps.sampled_rows import device_settings_of, top_k_of
from graphml.sampling import (
    PeekableRandom,
    SamplingParams,
    TopK,
)
from graphml.system.pages import out_of_memory

Work: TypeAlias = Sequence[tuple[Pinned, Array]]
Step: TypeAlias = list[tuple[int, int, int]]
Take: TypeAlias = Callable[[Mapping[str, Array]], None]


def _steps(lengths: Sequence[int], n_batch: int, max_chunk: int) -> list[Step]:
    """Steps that take each sequence's tokens in turn: (sequence, first token, behind the last).

    max_chunk: most tokens of one sequence in a step.
    """
    taken, steps = [0] * len(lengths), list[Step]()
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
            return steps
        steps.append(step)


def evaluate(
    work: Work,
    options: CompileOptions,
    all_logits: bool = False,
    scored: bool = False,
    by: Sequence[tuple[SamplingParams, PeekableRandom]] = (),
    take: Take | None = None,
    cancelled: Callable[[], bool] | None = None,
    progress: Progress = no_progress,
) -> list[Floats | TopK]:
    """Append ids (at least one) to each sequence of a room: for each the logits float32 [rows, n_vocab].

    rows: 1, after the last id, or all_logits: after each. scored: rows of prompts give log-probabilities
    (`plans.prompt_scores`); WeightsError where they are no numbers. by: by what the next token of each is
    sampled, for an executor that `has_top_k`: then the top k of its last row comes back, and the device
    samples, too, where it can. take: gets the outputs of every step. An empty list when cancelled. Then, and
    after an error, sequences may hold more: the caller rolls them back.
    Where tokens see later ones, all of a text must come at once: a UsageError otherwise.
    """
    n_vocab = work[0][0].room.executor.n_vocab
    lengths, logits, tops = list[int](), list[Floats](), dict[int, TopK]()
    try:
        for sequence, ids in work:
            sequence.n_prompt = sequence.n_computed + len(ids)
            lengths.append(len(ids))
            logits.append(np.empty((0 if by else len(ids) if all_logits else 1, n_vocab), np.float32))
    except MemoryError as error:
        raise out_of_memory(f"logits of {sum(lengths)} tokens", error, "give fewer tokens at once") from None
    for (sequence, _), (params, numbers) in zip(work, by, strict=False):
        sequence.samples_by(params, numbers)

    def keep(i: int, first: int, end: int, outputs: Mapping[str, Array], end_row: int) -> None:
        sequence, row = work[i][0], end_row - 1
        if all_logits:
            logits[i][first:end] = outputs["logits"][end_row - (end - first) : end_row]
        elif end == lengths[i] and by:
            whole = _row_of(sequence, outputs, row)
            tops[i] = top_k_of(outputs, row, n_vocab, device_settings_of(sequence), whole)
        elif end == lengths[i]:
            logits[i][0] = outputs["logits"][row]
        if take is not None:
            take(outputs)

    if not _run(work, options, all_logits, scored, keep, cancelled, progress, lengths):
        return []
    return [tops[i] for i in range(len(work))] if by else [*logits]


def drafted_logits(
    sequence: Pinned, ids: Array, n_again: int, options: CompileOptions, take: Take | None = None
) -> Floats:
    """Append ids to a pinned sequence: the logits behind each, float32 [len(ids), n_vocab].

    The first `n_again` were evaluated before. take: gets the outputs. Whoever calls says which of them it
    keeps, and has the others rolled back.
    """
    copies = list[Floats]()

    def keep(outputs: Mapping[str, Array], end_row: int) -> None:
        if take is not None:
            take(outputs)
        copies.append(outputs["logits"][: len(ids)].copy())

    with sequence.room.executor.lock:
        sequence.restore_states()
        n_drafted = len(ids) - 1 - n_again
        rows = replace(sequence.rows(ids, len(ids)), n_drafted=n_drafted, n_again=n_again)
        sequence.room.run({sequence: (rows, keep)}, options)
    return copies[0]


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
    scored: bool,
    keep: Callable[[int, int, int, Mapping[str, Array], int], None],
    cancelled: Callable[[], bool] | None,
    progress: Progress,
    lengths: Sequence[int],
) -> bool:
    """Take all steps; keep: gets sequence, first token and behind the last, and a `Part`'s outputs.

    False when cancelled.
    """
    room, one_row = work[0][0].room, not all_logits and not scored
    shares = work[0][0].shares and one_row and not options.hidden
    max_chunk = min(room.runner.max_chunk, MOST_ROWS) if scored else room.runner.max_chunk
    executor, total, done = room.executor, sum(lengths), 0
    if not room.is_plain:
        _check(work, total)
    tell = progress if total > executor.n_batch else None
    if room.copies is not None:
        with executor.lock:
            for sequence, _ in work:
                sequence.restore_states()
        _keep_states(work)  # what a rewind to before this prompt goes back to
    for step in _steps(lengths, executor.n_batch, max_chunk):
        if cancelled is not None and cancelled():
            return False
        if tell is not None:
            tell("prefill", done, total)
        parts = dict[Pinned, Part]()
        for i, first, end in step:
            sequence, ids = work[i]
            if scored:
                rows = sequence.scored_rows(ids[first:end], end == len(ids))
            else:
                n_outputs = end - first if all_logits else int(end == len(ids))
                rows = sequence.rows(ids[first:end], n_outputs)
            parts[sequence] = rows, functools.partial(keep, i, first, end)
            done += end - first
        if shares:
            room.run_with_others(sequence, parts[sequence])  # of a session by itself
        else:
            room.run(parts, options)
    if room.copies is not None:
        _keep_states(work)
    if tell is not None:
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
