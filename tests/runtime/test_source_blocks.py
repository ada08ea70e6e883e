"""Source texts of an encoder in a scheduler: read when their sequences begin, in blocks of their own."""

from __future__ import annotations

import numpy as np

from graphml.runtime.blocks.sequence import Sequence
from tests.runtime.made_up_runner import (
    run,
    scheduler_of,
    sequence_of,
)


def with_source(text: list[int], order: int) -> Sequence:
    source = np.array(text, np.int32)
    return sequence_of(1, order, extra=source.tobytes(), source=source)


def test_a_source_is_read_in_the_step_that_its_sequence_begins_in() -> None:
    """The first takes as many rows as it needs, further ones what is left; equal ones are read once."""
    scheduler = scheduler_of(8, max_sequences=8)
    texts = [list(range(12)), list(range(6)), list(range(12)), [5]]
    first, second, same, short = (with_source(text, order) for order, text in enumerate(texts))
    for one in (first, second, same, short):
        scheduler.add(one)
    plans = [run(scheduler, budget=10) for _ in range(2)]
    assert [plan.sources for plan in plans] == [(first,), (second, short)]
    assert [one.sequence for one in plans[0].rows] == [first]
    assert same.source_blocks == first.source_blocks
    scheduler.remove(first)
    assert scheduler.sources.n_used == 3 + 2 + 1
    for one in (second, same, short):
        scheduler.remove(one)
    assert scheduler.sources.n_used == 0


def test_a_source_waits_for_blocks() -> None:
    scheduler = scheduler_of(8)
    first, second = (with_source(list(range(at, at + 20)), at) for at in (0, 1))
    for one in (first, second):
        scheduler.add(one)
    assert run(scheduler).sources == (first,)
    assert run(scheduler).sources == ()
    scheduler.remove(first)
    assert run(scheduler).sources == (second,)
