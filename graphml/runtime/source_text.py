"""Source texts of models with an encoder and a decoder: read once, whole, before the decoder's first step.

Knows slots, ids and rows; what the encoder keeps of a text, and where, is the graph's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphml.backend import State
from graphml.compiler.compile import Compiled
from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.runtime.executor import Executor
from graphml.runtime.paged_cache import PagedCache
from graphml.runtime.step_inputs import fill, write_factors


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


def encode(executor: Executor, ids: Mapping[int, Array], cache: PagedCache, state: State) -> Array:
    """Read a source text for each of some sequences, in place of the one before.

    At most n_batch ids in all. The rows of the encoder's last layer, float32 [ids, d], in the order of `ids`;
    good until the next step. After an error those sequences have no source text.
    """
    for one in ids.values():
        check_source(executor, len(one), cache.n_ctx)
    if sum(map(len, ids.values())) > executor.n_batch:
        raise UsageError(f"encode: wanted source texts of at most n_batch = {executor.n_batch} tokens in all")
    source = cache.source
    if source is None:
        raise UsageError("encode: wanted a cache for source texts (PagedCache with encoded)")
    with executor.lock:
        program = encoder_program(executor, len(cache.lengths)).program
        executor.n_steps += 1
        for sequence in ids:
            source.rewind(sequence, 0)
        try:
            given = {sequence: np.asarray(one, np.int32) for sequence, one in ids.items()}
            dims = fill(program.inputs, given, source, "all")
            write_factors(program.inputs, executor.options, dims["T"])
            return program.run(dims, state)["embeddings"]
        except BaseException:
            for sequence in ids:
                source.rewind(sequence, 0)
            raise
