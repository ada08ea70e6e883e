"""Source texts of models with an encoder and a decoder: read once, whole, before the decoder's first step.

Knows counts of ids and programs; what the encoder keeps of a text, and where, is the graph's.
"""

from __future__ import annotations

from graphml.compiler.compile import Compiled
from graphml.errors import UsageError
from graphml.runtime.executor import Executor


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
