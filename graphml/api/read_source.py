"""Reading the source text of a session whose model has an encoder.

Knows commits, ids and what is timed; nothing of what is said of the text.
"""

from __future__ import annotations

from graphml.api.stats import Meter
from graphml.ir.op import Array
from graphml.runtime.committed import Committed
from graphml.runtime.executor import Executor
from graphml.runtime.source_text import check_source, encoder_program


def read_source(executor: Executor, held: Committed, ids: Array, n_ctx: int, meter: Meter) -> None:
    """Have the encoder read the ids in place of all that a session holds; compiling is not timed."""
    check_source(executor, len(ids), n_ctx)
    before, sequence = held.begin_source()
    encoder_program(executor, sequence.room.n_sequences)
    with meter.prompt(len(ids)):
        sequence.read_source(ids)
    held.commit_source(before, ids)


def decoder_prompt(executor: Executor, held: Committed, ids: Array, n_ctx: int, meter: Meter) -> list[int]:
    """Have the encoder read the ids, if there are any; what the decoder evaluates then, to answer them.

    The start token, and only before anything else: later the decoder goes on where it is.
    """
    if len(ids):
        read_source(executor, held, ids, n_ctx, meter)
    return [] if len(held) else [executor.config.start_token]
