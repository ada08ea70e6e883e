"""Reading the source text of a session whose model has an encoder.

Knows slots, ids and what is timed; nothing of what is said of the text.
"""

from __future__ import annotations

import numpy as np

from graphml.engine.encoding import encode, encoder_program
from graphml.engine.executor import Executor
from graphml.engine.slots import Slot
from graphml.generate.stats import Meter


def read_source(executor: Executor, slot: Slot, ids: list[int], meter: Meter) -> None:
    """Forget all tokens of a slot and have the encoder read the ids for it; compiling is not timed."""
    slot.rewind(0)
    encoder_program(executor, len(slot.cache.lengths))
    with meter.prompt(len(ids)):
        encode(executor, {slot.sequence: np.asarray(ids, np.int32)}, slot.cache, slot.state)
