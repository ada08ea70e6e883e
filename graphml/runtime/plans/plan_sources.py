"""The source texts of a plan: read by the encoder in a step of its own, attended to by the decoder's rows.

Knows plans, programs and their inputs; the scheduler assigns a text's blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphml.backend import State
from graphml.compiler.compile import Compiled
from graphml.errors import UsageError
from graphml.ir.cells import BLOCK_SIZE, TABLE_WIDTH, cells_of
from graphml.ir.op import Array
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.step_inputs import write, write_blocks, write_factors


def check_source(executor: Executor, n_ids: int, n_ctx: int) -> None:
    """UsageError unless a text of so many ids can be read in a cache of `n_ctx` tokens, all at once."""
    if not executor.encodes:
        raise UsageError(f"encode: {executor.architecture.name} has no encoder; see Session.eval")
    limit = min(executor.n_batch, n_ctx)
    if not 0 < n_ids <= limit:
        which = "n_batch" if executor.n_batch < n_ctx else "n_ctx"
        raise UsageError(f"encode: wanted a source text of 1 to {limit} tokens ({which}); got {n_ids}")


def encoder_program(executor: Executor, n_sequences: int) -> Compiled:
    """The program that reads source texts, for a cache of so many sequences."""
    n_batch = executor.n_batch
    return executor.compiled(n_batch, n_batch, None, n_sequences, encoder=True)


def read_sources(executor: Executor, plan: StepPlan, state: State, n_cells: int, max_sequences: int) -> None:
    """Have the encoder read the texts that a plan begins with, if any; the caller holds the lock."""
    if not plan.sources:
        return
    program = encoder_program(executor, max_sequences).program
    feed, lengths = program.inputs, np.zeros(max_sequences, np.int32)
    texts = [
        (sequence.slot, sequence.request.source, np.array(sequence.source_blocks, np.int32))
        for sequence in plan.sources
    ]
    positions = [np.arange(len(text), dtype=np.int32) for _, text, _ in texts]
    for slot, text, blocks in texts:
        lengths[slot] = len(text)
        write_blocks(feed, "block_table", slot, blocks)
    count = int(lengths.sum())
    inputs = {
        "tokens": np.concatenate([text for _, text, _ in texts]),
        "positions": np.concatenate(positions),
        "cells": np.concatenate(
            [cells_of(blocks, at, BLOCK_SIZE) for (_, _, blocks), at in zip(texts, positions, strict=True)]
        ),
        "sequences": np.repeat([slot for slot, _, _ in texts], [len(text) for _, text, _ in texts]),
        "output_rows": np.arange(count, dtype=np.int32),
        "lengths": lengths,
    }
    write(feed, inputs)
    write_factors(feed, executor.options, count)
    executor.n_steps += 1
    program.run({"T": count, "O": count, "S": max_sequences, "B": TABLE_WIDTH, "C": n_cells}, state)


def show_sources(feed: Mapping[str, Array], plan: StepPlan) -> None:
    """Write in which cells the rows of a plan find their texts, for a graph that attends to them."""
    for rows in plan.rows:
        sequence = rows.sequence
        feed["source_lengths"][sequence.slot] = len(sequence.request.source)
        write_blocks(feed, "source_table", sequence.slot, np.array(sequence.source_blocks, np.int32))
